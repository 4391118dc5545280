//! Makes a failing schedule smaller for as long as it fails.

use super::{
    run,
    schedule::{Cut, Schedule},
};

/// Maximum number of runs to make a failing schedule smaller.
const MAX_RUNS: usize = 400;

/// The smallest part of a schedule that was found to fail, and why it does.
pub(super) struct SmallestSchedule {
    pub(super) cut: Cut,
    pub(super) why: String,
}

struct ShrinkSearch<'a> {
    schedule: &'a Schedule,
    smallest: SmallestSchedule,
    runs: usize,
}

impl ShrinkSearch<'_> {
    /// Keeps a smaller schedule if it fails, too.
    fn try_cut(&mut self, cut: Cut) -> bool {
        if cut == self.smallest.cut || self.runs == MAX_RUNS {
            return false;
        }
        self.runs += 1;
        match run(&self.schedule.cut(&cut)).result {
            Ok(()) => false,
            Err(why) => {
                self.smallest = SmallestSchedule { cut, why };
                true
            }
        }
    }

    /// Leaves out parts of the steps, first large ones and then single ones.
    fn remove_steps(&mut self) {
        let mut size = self.smallest.cut.steps.len().div_ceil(2);
        while size > 0 {
            let mut first = 0;
            while first < self.smallest.cut.steps.len() {
                let mut cut = self.smallest.cut.clone();
                cut.steps.drain(first..(first + size).min(cut.steps.len()));
                if !self.try_cut(cut) {
                    first += size;
                }
            }
            size /= 2;
        }
    }

    /// Leaves out clusters and processes.
    fn remove_processes(&mut self) {
        let mut cut = self.smallest.cut.clone();
        cut.clusters.truncate(1);
        self.try_cut(cut);
        for cluster in 0..self.smallest.cut.clusters.len() {
            for processes in 0..self.smallest.cut.clusters[cluster] {
                let mut cut = self.smallest.cut.clone();
                cut.clusters[cluster] = processes;
                if self.try_cut(cut) {
                    break;
                }
            }
        }
    }

    /// Halves pauses, first all of them and then single ones.
    fn halve_pauses(&mut self) {
        let halved = |mut cut: Cut| {
            cut.steps.iter_mut().for_each(|(_, halvings)| *halvings += 1);
            cut
        };
        while self.smallest.cut.steps.iter().all(|step| step.1 < 16)
            && self.try_cut(halved(self.smallest.cut.clone()))
        {}
        for step in 0..self.smallest.cut.steps.len() {
            for halvings in [17, 4, 1] {
                let mut cut = self.smallest.cut.clone();
                cut.steps[step].1 += halvings;
                if cut.steps[step].1 < 18 && self.try_cut(cut) {
                    break;
                }
            }
        }
    }
}

/// Makes a schedule smaller that fails.
pub(super) fn shrink(schedule: &Schedule, why: String) -> SmallestSchedule {
    let smallest = SmallestSchedule { cut: Cut::everything(schedule), why };
    let mut search = ShrinkSearch { schedule, smallest, runs: 0 };
    loop {
        let before = search.smallest.cut.clone();
        search.remove_processes();
        search.remove_steps();
        search.halve_pauses();
        if search.smallest.cut == before || search.runs == MAX_RUNS {
            // Steps of clusters that were left out are not taken.
            return search.smallest;
        }
    }
}
