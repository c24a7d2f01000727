//! Serves metrics over HTTP: one connection at a time, one request each, with limits on size and
//! time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use crate::error::Error;

/// Time limit of a request; other clients wait meanwhile.
const LIMIT: Duration = Duration::from_secs(5);
/// Size limit of the request line and the headers, in bytes.
const REQUEST_BYTES: usize = 8 * 1024;

/// Address of the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
pub(crate) struct MetricsServer {
    listener: Listener,
    address: MetricsAddress,
    stopped: AtomicBool,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A TCP or Unix connection.
trait Connection: Read + Write {
    fn set_limit(&self, limit: Duration) -> io::Result<()>;
}

impl Connection for TcpStream {
    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit)).and_then(|()| self.set_write_timeout(Some(limit)))
    }
}

impl Connection for UnixStream {
    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit)).and_then(|()| self.set_write_timeout(Some(limit)))
    }
}

impl MetricsServer {
    pub(crate) fn bind(address: &MetricsAddress) -> Result<Self, Error> {
        let (bound, shown) = match address {
            MetricsAddress::Tcp(tcp) => (TcpListener::bind(tcp).map(Listener::Tcp), tcp.to_string()),
            MetricsAddress::Unix(path) => (bind_unix(path), path.display().to_string()),
        };
        let listener = bound.map_err(|source| Error::Io {
            context: format!(
                "cannot serve metrics on {shown}: choose another address for the option metrics"
            ),
            source,
        })?;
        // The system may have chosen the port.
        let address = match &listener {
            Listener::Tcp(tcp) => tcp.local_addr().map_or_else(|_| address.clone(), MetricsAddress::Tcp),
            Listener::Unix(_) => address.clone(),
        };
        Ok(Self { listener, address, stopped: AtomicBool::new(false) })
    }

    /// Answers a request for a path with the result of `render`, until [`Self::stop`].
    pub(crate) fn serve(&self, render: impl Fn(&str) -> Option<String>) {
        while !self.stopped.load(Ordering::Acquire) {
            let outcome = match &self.listener {
                Listener::Tcp(listener) => listener.accept().map(|(stream, _)| self.answer(stream, &render)),
                Listener::Unix(listener) => listener.accept().map(|(stream, _)| self.answer(stream, &render)),
            };
            let Err(error) = outcome else { continue };
            if !self.stopped.load(Ordering::Acquire) {
                tracing::warn!(%error, "cannot accept a connection for metrics");
                // For example, because the process has no free descriptors.
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Ends the accept call of the serving thread.
        let _ = match &self.listener {
            Listener::Tcp(listener) => shutdown(listener, Shutdown::Both),
            Listener::Unix(listener) => shutdown(listener, Shutdown::Both),
        };
    }

    fn answer(&self, mut stream: impl Connection, render: impl Fn(&str) -> Option<String>) {
        if let Err(error) = respond(&mut stream, render) {
            tracing::debug!(%error, "a request for metrics was not answered");
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if let MetricsAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Replaces a socket that no process listens on.
fn bind_unix(path: &Path) -> io::Result<Listener> {
    let is_socket = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path).map(Listener::Unix)
}

fn respond(stream: &mut impl Connection, render: impl Fn(&str) -> Option<String>) -> io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    let request = read_request(stream, deadline)?;
    let (status, kind, body) = match request.as_deref().map(|request| request.strip_prefix("GET ")) {
        Some(Some(path)) => match render(path) {
            Some(rendered) => {
                ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", rendered)
            }
            None => ("404 Not Found", "text/plain", "What there is is at /metrics.\n".into()),
        },
        Some(None) => ("405 Method Not Allowed", "text/plain", "There is only GET.\n".into()),
        None => ("400 Bad Request", "text/plain", "This is no request that is understood here.\n".into()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let bytes = [head.as_bytes(), body.as_bytes()].concat();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        stream.set_limit(left(deadline)?)?;
        match stream.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => rest = &rest[written..],
        }
    }
    Ok(())
}

/// Returns the method and path of a request without its query; `None`: too long, or not HTTP.
fn read_request(stream: &mut impl Connection, deadline: Instant) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        stream.set_limit(left(deadline)?)?;
        let read = stream.read(&mut buffer)?;
        if read == 0 || head.len() + read > REQUEST_BYTES {
            return Ok(None);
        }
        head.extend_from_slice(&buffer[..read]);
    }
    let line = String::from_utf8_lossy(&head);
    let mut words = line.lines().next().unwrap_or_default().split(' ');
    Ok(match (words.next(), words.next(), words.next()) {
        (Some(method), Some(target), Some(version)) if version.starts_with("HTTP/1.") => {
            let path = target.split('?').next().unwrap_or_default();
            Some(format!("{method} {path}"))
        }
        _ => None,
    })
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &[u8]) -> String {
        let (mut ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        // Requests and answers fit into the socket buffers.
        ours.write_all(request).expect("to write");
        ours.shutdown(std::net::Shutdown::Write).expect("to end");
        respond(&mut theirs, |path| (path == "/metrics").then(|| "figures".into())).expect("an answer");
        drop(theirs);
        let mut answer = Vec::new();
        // Unread input resets the connection after the answer.
        let _ = ours.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    #[test]
    fn http_server_answers_each_path() {
        let ok = ask(b"GET /metrics?x=y HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(ok.starts_with("HTTP/1.1 200 OK\r\n") && ok.ends_with("\r\n\r\nfigures"), "{ok}");
        assert!(ok.contains("Content-Length: 7\r\n"));
        assert!(ask(b"GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(b"nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(ask(b"GET /metrics HT").starts_with("HTTP/1.1 400 "));
        assert!(ask(&[b'x'; 20_000]).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn serves_until_it_is_stopped() {
        let any = MetricsAddress::Tcp(([127, 0, 0, 1], 0).into());
        let server = MetricsServer::bind(&any).expect("a free port");
        let MetricsAddress::Tcp(address) = server.address else { panic!("no port") };
        std::thread::scope(|scope| {
            scope.spawn(|| server.serve(|_| Some("figures".into())));
            for _ in 0..3 {
                let mut stream = TcpStream::connect(address).expect("a connection");
                stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("to write");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("an answer");
                assert!(answer.ends_with("figures"), "{answer}");
            }
            assert!(MetricsServer::bind(&server.address).is_err(), "the port is taken");
            server.stop();
        });
    }

    #[test]
    fn stale_socket_is_replaced_but_other_file_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let address = MetricsAddress::Unix(path.clone());
        drop(UnixListener::bind(&path).expect("a socket"));
        let server = MetricsServer::bind(&address).expect("the left-over socket is replaced");
        assert!(MetricsServer::bind(&address).is_err(), "another process listens on it");
        drop(server);
        assert!(!path.exists());
        let file = dir.path().join("file");
        std::fs::write(&file, b"kept").expect("a file");
        assert!(MetricsServer::bind(&MetricsAddress::Unix(file.clone())).is_err());
        assert_eq!(std::fs::read(&file).expect("the file"), b"kept");
    }
}
