//! Git: rows as files in commits on a branch.

mod remote;
mod transport;
