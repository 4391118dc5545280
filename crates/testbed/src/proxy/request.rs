//! HTTP/1.1 as far as a proxy needs it: one whole request, and a response of our own.
//!
//! Called for each connection. A request is forwarded unchanged except for its `Connection` header: the API
//! server is asked to close after the response, so the proxy need not find the end of a response.

use std::fmt::Write as _;
use std::io::{self, BufRead, Read as _};

/// A request with its body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Such as `GET /version HTTP/1.1`.
    pub(super) line: String,
    /// The whole request, as it is forwarded.
    pub(super) bytes: Vec<u8>,
}

impl Request {
    /// Reads up to the end of the body, and no further.
    pub(super) fn read(source: &mut impl BufRead) -> io::Result<Self> {
        let line = read_line(source)?;
        let mut head = format!("{line}\r\n");
        let mut length = 0;
        let mut chunked = false;
        for header in read_headers(source)? {
            let (name, value) = header.split_once(':').unwrap_or((&header, ""));
            match name.to_ascii_lowercase().as_str() {
                "connection" => continue,
                "content-length" => length = value.trim().parse().map_err(invalid)?,
                "transfer-encoding" => chunked = true,
                _ => {}
            }
            head.push_str(&header);
            head.push_str("\r\n");
        }
        head.push_str("Connection: close\r\n\r\n");
        let mut bytes = head.into_bytes();
        if chunked {
            read_chunks(source, &mut bytes)?;
        } else {
            read_exactly(source, length, &mut bytes)?;
        }
        Ok(Self { line, bytes })
    }
}

/// A whole response, after which the connection is closed.
pub(super) fn response(status: u16, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} \r\n");
    let length = body.len().to_string();
    for (name, value) in [("Content-Length", length.as_str()), ("Connection", "close")].iter().chain(headers)
    {
        // Writing to a string cannot fail.
        write!(text, "{name}: {value}\r\n").ok();
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// The chunks as they are, with their sizes and the trailers.
fn read_chunks(source: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let line = read_line(source)?;
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        let size = line.split(';').next().unwrap_or_default();
        let size = u64::from_str_radix(size.trim(), 16).map_err(invalid)?;
        if size == 0 {
            break;
        }
        // The line break is not part of the size.
        read_exactly(source, size + 2, bytes)?;
    }
    for trailer in read_headers(source)? {
        bytes.extend_from_slice(trailer.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    Ok(())
}

fn read_exactly(source: &mut impl BufRead, length: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    match source.take(length).read_to_end(bytes)? {
        read if read as u64 == length => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The lines up to the empty one.
fn read_headers(source: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut headers = Vec::new();
    loop {
        let line = read_line(source)?;
        if line.is_empty() {
            return Ok(headers);
        }
        headers.push(line);
    }
}

/// A line without its end.
fn read_line(source: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    source.read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.strip_suffix('\r').unwrap_or(line).to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn invalid(error: std::num::ParseIntError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(request: &str) -> io::Result<String> {
        let request = Request::read(&mut request.as_bytes())?;
        Ok(String::from_utf8(request.bytes).unwrap())
    }

    #[test]
    fn a_request_is_forwarded_with_another_connection_header_and_nothing_after_it() {
        let text = "POST /a HTTP/1.1\r\nconnection: keep-alive\r\nContent-Length: 3\r\n\r\nabcGET /b";
        let expected = "POST /a HTTP/1.1\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
        assert_eq!(forwarded(text).unwrap(), expected);
    }

    #[test]
    fn chunks_are_forwarded_unchanged() {
        let body = "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n";
        let head = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n";
        let expected = format!("{head}Connection: close\r\n\r\n{body}");
        assert_eq!(forwarded(&format!("{head}\r\n{body}GET /b")).unwrap(), expected);
    }

    #[test]
    fn a_request_that_ends_early_is_an_error() {
        for text in [
            "",
            "GET /",
            "GET / HTTP/1.1\r\nHost: a\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        ] {
            let error = forwarded(text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{text}");
        }
    }
}
