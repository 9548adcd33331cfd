//! Questions to a running node, over its admin socket: as much of HTTP/1.1 as that needs.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest answer that is read, in bytes.
const MAX_ANSWER_LEN: u64 = 256 << 20;

/// How long one read or write may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens there.
    #[error(
        "nothing answers on {}: {cause}; is `windlass run` running on this node? With another --admin-socket, \
         give the same here", path.display()
    )]
    NotRunning {
        /// The socket.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The socket belongs to somebody else.
    #[error(
        "{} may not be opened: {cause}; only the user that runs windlass may ask it, so use sudo, or run as Administrator", path.display()
    )]
    NotPermitted {
        /// The socket.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// It broke off.
    #[error("{} did not answer: {cause}; see the log of `windlass run`", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It was asked something it cannot answer.
    #[error("{said}")]
    Refused {
        /// The status code.
        status: u16,
        /// What it said.
        said: String,
    },
}

/// Asks `target` with GET, or with POST when there is a `body`.
///
/// # Errors
/// When nobody answers, or the answer is a refusal.
pub fn ask(path: &Path, target: &str, body: Option<&[u8]>) -> Result<Vec<u8>, AskError> {
    let answer = exchange(path, target, body.unwrap_or_default(), body.is_some()).map_err(|cause| {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                AskError::NotRunning { path, cause }
            }
            io::ErrorKind::PermissionDenied => AskError::NotPermitted { path, cause },
            _ => AskError::Broken { path, cause },
        }
    })?;
    let broken = |reason: &str| {
        let cause = io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
        AskError::Broken { path: path.to_owned(), cause }
    };
    let end =
        answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(|| broken("no HTTP answer"))?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status: u16 = status.ok_or_else(|| broken("no HTTP answer"))?;
    let body = &answer[end + 4..];
    if content_length(&head).is_some_and(|length| length != body.len()) {
        return Err(broken("the answer broke off"));
    }
    match status {
        200 => Ok(body.to_vec()),
        404 => Err(AskError::Refused {
            status,
            said: format!(
                "{} does not know {target}: it runs another version of windlass; restart it",
                path.display()
            ),
        }),
        _ => Err(AskError::Refused { status, said: String::from_utf8_lossy(body).trim().to_owned() }),
    }
}

fn content_length(head: &str) -> Option<usize> {
    let line = head.lines().find_map(|line| {
        line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
    })?;
    line.1.trim().parse().ok()
}

fn exchange(path: &Path, target: &str, body: &[u8], post: bool) -> io::Result<Vec<u8>> {
    let mut stream = connect(path)?;
    let method = if post { "POST" } else { "GET" };
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: windlass\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_LEN).read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(unix)]
fn connect(path: &Path) -> io::Result<impl Read + Write> {
    let stream = std::os::unix::net::UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A pipe has no time-outs; the node ends a connection after [`CONNECTION_LIFE`](super::CONNECTION_LIFE). It answers one
/// client after another, and between two it is busy for a moment.
#[cfg(windows)]
fn connect(path: &Path) -> io::Result<impl Read + Write> {
    const PIPE_BUSY: i32 = 231;
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match std::fs::OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.raw_os_error() == Some(PIPE_BUSY) && std::time::Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
