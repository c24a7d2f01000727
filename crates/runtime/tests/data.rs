//! Who may talk to a data server, and what it does for them.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use espalier_net::pki::{AUTHORITY, Authority, CERTIFICATE, Issued, KEY, Validity};
use espalier_net::{ConnectError, Connection, Identity, Limits, Reason, Security, connect};
use espalier_proto::{
    ClientId, ClusterId, DataReply, DataRequest, Errno, FromData, Hello, Ino, RequestId, ServerId, Service,
    ToData, Welcome,
};
use espalier_runtime::{DataRole, DataStore, ServeOptions, mkfs_data, serve};

type Asker = Connection<FromData, ToData>;

fn credentials(dir: &Path, name: &str, issued: &Issued) -> Security {
    let own = dir.join(name);
    std::fs::create_dir(&own).unwrap();
    std::fs::copy(dir.join(AUTHORITY), own.join(AUTHORITY)).unwrap();
    issued.write(&own.join(CERTIFICATE), &own.join(KEY)).unwrap();
    Security::load_from(&own).unwrap()
}

/// Serves as the data server 3, for as long as the test's process runs.
fn data_server(dir: &Path, security: Security) -> SocketAddr {
    let path = dir.join("data");
    mkfs_data(&path, ServerId(3)).unwrap();
    assert!(DataStore::open(&path, ServerId(2), false).is_err(), "it is another's");
    let store = DataStore::open(&path, ServerId(3), false).unwrap();
    let options = ServeOptions {
        number: ServerId(3),
        listen: ([127, 0, 0, 1], 0).into(),
        security,
        limits: Limits::default(),
        max_connections: 10,
        threads: 2,
        metrics: None,
        slow: None,
        drain: Duration::from_secs(30),
    };
    let (ready, address) = channel();
    std::thread::spawn(move || {
        let ready = |address| ready.send(address).unwrap();
        serve(None, Some(DataRole { store }), options, ready).unwrap();
    });
    address.recv().unwrap()
}

async fn reach(
    address: SocketAddr,
    security: &Security,
    service: Service,
) -> Result<(Welcome, Asker), ConnectError> {
    let hello = Hello { cluster: ClusterId::ANY, service, client: ClientId(0), incarnation: Some(1) };
    connect(&address.to_string(), security, &Limits::default(), hello).await
}

async fn ask(asker: &mut Asker, request: DataRequest) -> Result<DataReply, Errno> {
    asker.sender.send(ToData { id: RequestId(7), request }).unwrap();
    let mut batch = Vec::new();
    while batch.is_empty() {
        asker.receiver.next(&mut batch).await.unwrap();
    }
    batch.remove(0).result
}

#[tokio::test]
async fn data_servers_are_for_servers() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path(), Validity::years(1)).unwrap();
    let hosts = ["127.0.0.1".to_string()];
    let issue = |name: &str| {
        let identity = Identity::server(name).unwrap();
        authority.issue_server(&identity, &hosts, Validity::years(1)).unwrap()
    };
    let own = credentials(dir.path(), "own", &issue("server-3"));
    let server = credentials(dir.path(), "server", &issue("server-0"));
    let issued = authority.issue_client(&Identity::client("eve").unwrap(), Validity::years(1)).unwrap();
    let client = credentials(dir.path(), "client", &issued);
    let address = data_server(dir.path(), own);
    let refused = |outcome: Result<(Welcome, Asker), ConnectError>| match outcome {
        Err(ConnectError::Refused { refusal, .. }) => refusal.reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    };
    let data = |number| Service::Data(ServerId(number));
    assert_eq!(refused(reach(address, &client, data(3)).await), Reason::Identity);
    assert_eq!(refused(reach(address, &server, data(2)).await), Reason::Service);
    assert_eq!(refused(reach(address, &client, Service::Metadata { leases: true }).await), Reason::Service);

    let (_, mut asker) = reach(address, &server, data(3)).await.unwrap();
    let ino = Ino(9);
    let write = DataRequest::Write { ino, offset: 5, data: b"bytes".to_vec() };
    assert_eq!(ask(&mut asker, write).await, Ok(DataReply::Done));
    let read = || DataRequest::Read { ino, offset: 3, size: 100 };
    assert_eq!(ask(&mut asker, read()).await, Ok(DataReply::Bytes(b"\0\0bytes".to_vec())));
    assert_eq!(ask(&mut asker, DataRequest::Sync { ino }).await, Ok(DataReply::Done));
    assert_eq!(ask(&mut asker, DataRequest::New).await, Ok(DataReply::Inos(vec![])));
    assert_eq!(ask(&mut asker, DataRequest::Remove { ino }).await, Ok(DataReply::Done));
    assert_eq!(ask(&mut asker, read()).await, Ok(DataReply::Bytes(vec![])));
    // The time of what is not there is not kept, and what is filled with nothing is not there.
    let mtime = espalier_proto::Time::new(5, 0);
    assert_eq!(ask(&mut asker, DataRequest::SetMtime { ino, mtime }).await, Ok(DataReply::Done));
    let fill = |size| DataRequest::Fill { ino, data: Vec::new(), size, mtime, sync: true };
    for (size, new) in [(4, vec![ino]), (0, vec![])] {
        assert_eq!(ask(&mut asker, fill(size)).await, Ok(DataReply::Done));
        assert_eq!(ask(&mut asker, DataRequest::New).await, Ok(DataReply::Inos(new)));
    }
    let far = DataRequest::Write { ino, offset: espalier_proto::END, data: vec![1] };
    assert_eq!(ask(&mut asker, far).await, Err(Errno::EINVAL));
}
