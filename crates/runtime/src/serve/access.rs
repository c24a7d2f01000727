//! Access control for connections.

use std::collections::HashMap;

use espalier_meta::Rights;
use espalier_net::Identity;

/// The clients that may connect, and their rights.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Rights by the name in a client's certificate; clients that are not listed have all rights.
    pub clients: HashMap<String, Rights>,
}

impl Access {
    /// The rights of a client; `None` for a client without a certificate, where none is required.
    ///
    /// # Errors
    /// Why the client may not connect.
    pub fn of(&self, identity: Option<&Identity>) -> Result<Rights, &'static str> {
        match identity {
            None => Ok(Rights::default()),
            Some(Identity::Client(name)) => match self.clients.get(name) {
                Some(rights) if rights.refused => {
                    Err("this client is not to connect, as the server's configuration says")
                }
                rights => Ok(rights.cloned().unwrap_or_default()),
            },
            Some(Identity::Server(_)) => {
                Err("this certificate is a server's: use one that was made for a client")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_of_servers_are_no_clients() {
        let mut access = Access::default();
        access.clients.insert("reader".into(), Rights { read_only: true, ..Rights::default() });
        let client = |name| Identity::client(name).expect("a name");
        let server = Identity::server("reader").expect("a name");
        access.clients.insert("gone".into(), Rights { refused: true, ..Rights::default() });
        let of = |identity| access.of(Some(&identity));
        assert!(of(client("reader")).is_ok_and(|rights| rights.read_only));
        assert_eq!(of(client("other")), Ok(Rights::default()));
        assert!(of(server).is_err() && of(client("gone")).is_err());
    }
}
