//! HTTP/1.1 as far as an API server's clients need it (RFC 9112): requests with a length, answers with a length
//! or in chunks.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Longest request body that is read.
const BODY_LIMIT: usize = 4 << 20;

/// One request.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    /// `GET`, `PATCH`, ...
    pub(super) method: String,
    /// The path, without the query.
    pub(super) path: String,
    /// The query, decoded.
    pub(super) query: BTreeMap<String, String>,
    /// Header fields, their names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    /// The body.
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Reads the next request; `None` when the client has closed the connection.
    pub(super) fn read(from: &mut BufReader<TcpStream>) -> Result<Option<Self>> {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let method = words.next().context("no method")?.to_owned();
        let target = words.next().context("no target")?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Self { method, path: decoded(path), query: pairs(query), ..Self::default() };
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            request.headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = request.headers.get("content-length").map_or(Ok(0), |text| text.parse())?;
        if length > BODY_LIMIT {
            bail!("a body of {length} bytes");
        }
        request.body = vec![0; length];
        from.read_exact(&mut request.body)?;
        Ok(Some(request))
    }

    /// Whether a query parameter is set to true.
    pub(super) fn asks_for(&self, name: &str) -> bool {
        self.query.get(name).is_some_and(|value| value == "true" || value == "1")
    }
}

fn pairs(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()
}

/// Percent-encoding undone (RFC 3986 section 2.1); in queries a plus is a space.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| {
                tail.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok())
            })
            .flatten();
        bytes.push(escaped.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes an answer with a body of JSON.
pub(super) fn answer(to: &mut TcpStream, code: u16, body: &Value) -> Result<()> {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code} {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    Ok(to.write_all(&[head.as_bytes(), body.as_bytes()].concat())?)
}

/// An answer in chunks, each of them one line.
pub(super) struct Chunks<'a> {
    to: &'a mut TcpStream,
}

impl<'a> Chunks<'a> {
    /// Writes the head of the answer.
    pub(super) fn begin(to: &'a mut TcpStream) -> Result<Self> {
        to.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        Ok(Self { to })
    }

    /// Writes one line as one chunk.
    pub(super) fn line(&mut self, value: &Value) -> Result<()> {
        Ok(self.to.write_all(chunk(value).as_bytes())?)
    }

    /// Writes one line as one chunk in pieces of that many bytes, with a pause after each.
    pub(super) fn line_in_pieces(&mut self, value: &Value, bytes: usize) -> Result<()> {
        for piece in chunk(value).as_bytes().chunks(bytes) {
            self.to.write_all(piece)?;
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Ok(())
    }

    /// Writes half of a line, so that what follows cannot be part of the answer.
    pub(super) fn half_a_line(&mut self, value: &Value) -> Result<()> {
        let chunk = chunk(value);
        Ok(self.to.write_all(&chunk.as_bytes()[..chunk.len() / 2])?)
    }

    /// Ends the answer as it should end.
    pub(super) fn end(self) -> Result<()> {
        Ok(self.to.write_all(b"0\r\n\r\n")?)
    }
}

fn chunk(value: &Value) -> String {
    let line = format!("{value}\n");
    format!("{:x}\r\n{line}\r\n", line.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = pairs("fieldSelector=metadata.name%3Dx&watch=true&a+b=%zz");
        assert_eq!(query["fieldSelector"], "metadata.name=x");
        assert_eq!(query["a b"], "%zz");
    }
}
