//! The part of a schedule that is kept: fewer clusters and processes, fewer steps, shorter pauses. Its text is the
//! value of `CUT`.

use std::{fmt, str::FromStr};

use super::{ProcessStep, Schedule, ScheduleStep};

/// `2+1:0,3/2,7`: two processes in the first cluster and one in the second, and three steps, the second of which takes a
/// quarter of its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Cut {
    /// For each cluster the number of its operator processes.
    pub(in super::super) clusters: Vec<usize>,
    /// Numbers of steps, with how often their pauses are halved.
    pub(in super::super) steps: Vec<(usize, u32)>,
}

impl Cut {
    /// Keeps all clusters, steps and pauses.
    pub(in super::super) fn everything(schedule: &Schedule) -> Self {
        let steps = (0..schedule.steps.len()).map(|number| (number, 0)).collect();
        Self { clusters: schedule.clusters.clone(), steps }
    }
}

impl Schedule {
    /// The part that is kept.
    pub(in super::super) fn cut(&self, cut: &Cut) -> Self {
        let kept = cut.steps.iter().filter_map(|&(number, halvings)| {
            let (step, pause) = self.steps.get(number)?;
            let exists = step.cluster().is_none_or(|cluster| cluster < cut.clusters.len());
            let mut step = step.clone();
            if let ScheduleStep::Process(_, _, ProcessStep::Pause(seconds)) = &mut step {
                *seconds >>= halvings;
            }
            exists.then_some((step, pause >> halvings))
        });
        Self { seed: self.seed, clusters: cut.clusters.clone(), steps: kept.collect() }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clusters: Vec<String> = self.clusters.iter().map(ToString::to_string).collect();
        let step = |(number, halvings): &(usize, u32)| match halvings {
            0 => number.to_string(),
            _ => format!("{number}/{halvings}"),
        };
        let steps: Vec<String> = self.steps.iter().map(step).collect();
        write!(f, "{}:{}", clusters.join("+"), steps.join(","))
    }
}

impl FromStr for Cut {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (clusters, steps) = text.split_once(':').unwrap_or((text, ""));
        let step = |text: &str| {
            let (number, halvings) = text.split_once('/').unwrap_or((text, "0"));
            Ok((number.parse()?, halvings.parse()?))
        };
        Ok(Self {
            clusters: clusters.split('+').map(str::parse).collect::<Result<_, _>>()?,
            steps: steps.split(',').filter(|text| !text.is_empty()).map(step).collect::<Result<_, _>>()?,
        })
    }
}
