//! Free loopback ports, and a retry when another process takes one.
//!
//! A port is found by binding and closing it, so another process may take it before the server
//! does. Every server start goes through [`on_free_port`], which then tries another port.

use std::net::TcpListener;

use crate::Error;

const ATTEMPTS: u32 = 3;

/// A loopback TCP port that was free a moment ago.
pub fn free_port() -> Result<u16, Error> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(Error::io("find a free loopback port"))
}

/// Runs `start` with a free port, again with another one if that port turned out to be taken.
pub(crate) fn on_free_port<T>(mut start: impl FnMut(u16) -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match start(free_port()?) {
            Err(error) if error.is_port_taken() => {}
            outcome => return outcome,
        }
    }
    start(free_port()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken_port() -> Error {
        Error::Ended {
            name: "etcd".into(),
            status: "1".into(),
            log: "listen tcp 127.0.0.1:1: bind: address already in use".into(),
        }
    }

    #[test]
    fn at_most_three_ports_are_tried() {
        let mut tries = 0;
        let outcome: Result<(), Error> = on_free_port(|_| {
            tries += 1;
            Err(taken_port())
        });
        assert!(outcome.is_err());
        assert_eq!(tries, 3);
    }

    #[test]
    fn another_failure_is_final() {
        let mut tries = 0;
        let outcome: Result<(), Error> = on_free_port(|_| {
            tries += 1;
            Err(Error::PostgresMissing)
        });
        assert!(outcome.is_err());
        assert_eq!(tries, 1);
    }
}
