//! The parts of the operator: who leads, and what is served.

#![cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "the operator that uses these parts comes next")
)]

mod leader;
mod serve;
