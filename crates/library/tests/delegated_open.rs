//! A connected client without requests, and a client that is unreachable until its session expires.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use espalier_library::{Credentials, OpenOptions, blocking};

use crate::common;

const SESSION_MS: u32 = 4000;
const MORE_THAN_A_SESSION: Duration = Duration::from_millis(SESSION_MS as u64 * 5 / 2);

/// An open file without a name.
fn nameless(fs: &blocking::FileSystem) -> blocking::File {
    let file = fs.open_with(OpenOptions::new().read(true).write(true).create(true), "/file").unwrap();
    file.write_all_at(b"bytes", 0).unwrap();
    fs.remove_file("/file").unwrap();
    file
}

#[test]
fn reconnect_keeps_session_and_open_files() {
    let url = common::with_sessions(1, SESSION_MS);
    let fs = blocking::FileSystem::connect(&url, &Credentials::Insecure).unwrap();
    let file = nameless(&fs);
    thread::sleep(MORE_THAN_A_SESSION);
    let mut bytes = [0; 9];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 5);
    assert_eq!(&bytes[..5], b"bytes");
}

/// A proxy between a client and a server.
#[derive(Clone, Default)]
struct Proxy {
    is_cut: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// Starts a proxy to the server of `url`; also returns the URL of the proxy.
    fn to(url: &str) -> (Self, String) {
        let server = url.trim_start_matches("espalier://").trim_end_matches('/').to_owned();
        let (way, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").unwrap());
        let url = format!("espalier://{}/", listener.local_addr().unwrap());
        let own = way.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if !own.is_cut.load(Ordering::SeqCst) {
                    own.join(client.unwrap(), TcpStream::connect(&server).unwrap());
                }
            }
        });
        (way, url)
    }

    fn join(&self, client: TcpStream, server: TcpStream) {
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            thread::spawn(move || {
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        self.connections.lock().unwrap().push(client);
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn client_starts_new_session_after_expiry() {
    let (way, url) = Proxy::to(&common::with_sessions(1, SESSION_MS));
    let fs = blocking::FileSystem::connect(&url, &Credentials::Insecure).unwrap();
    let (lost, retained) = (nameless(&fs), fs.create("/kept").unwrap());
    way.cut(true);
    thread::sleep(MORE_THAN_A_SESSION);
    way.cut(false);
    fs.create_dir("/dir").unwrap();
    assert!(lost.read_at(&mut [0; 9], 0).is_err(), "the server has released the file");
    retained.write_all_at(b"bytes", 0).unwrap();
    drop(retained);
    assert_eq!(fs.read("/kept").unwrap(), b"bytes");
    // The new session works like the first.
    let file = nameless(&fs);
    way.cut(false);
    assert_eq!(file.read_at(&mut [0; 9], 0).unwrap(), 5);
}
