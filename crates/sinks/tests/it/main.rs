//! Sinks against the real thing: one binary for all of them.
