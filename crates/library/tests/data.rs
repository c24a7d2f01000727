//! The library with data servers: it accesses big files there directly.

use crate::common;

use std::io::ErrorKind;

use espalier_library::{Credentials, FileSystem, OpenOptions};

async fn connect(url: &str) -> FileSystem {
    FileSystem::connect(url, &Credentials::Insecure).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_files_are_on_data_servers() {
    let url = common::with_data_servers(3);
    let (one, other) = (connect(&url).await, connect(&url).await);
    let mut bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    one.write("/big", &bytes).await.unwrap();
    assert_eq!(other.metadata("/big").await.unwrap().len(), 3_000_000);
    assert!(other.read("/big").await.unwrap() == bytes);
    // The bytes do not pass through the metadata server.
    assert!(one.messages().data > 0 && other.messages().data > 0);
    assert_eq!((one.messages().streams, other.messages().streams), (0, 0));

    // Both have the file open, and each reads the other's writes.
    let mut open = OpenOptions::new();
    let (ours, theirs) = (
        open.read(true).write(true).open(&one, "/big").await.unwrap(),
        open.open(&other, "/big").await.unwrap(),
    );
    for at in (0..2_900_000).step_by(290_000) {
        let (writer, reader) = if at % 580_000 == 0 { (&ours, &theirs) } else { (&theirs, &ours) };
        writer.write_all_at(b"written", at).await.unwrap();
        bytes[at as usize..][..7].copy_from_slice(b"written");
        let mut read = [0; 7];
        assert_eq!(reader.read_at(&mut read, at).await.unwrap(), 7);
        assert_eq!(&read, b"written");
    }
    // Each append is in the file exactly once.
    let append = |file: espalier_library::File, text: &'static [u8]| async move {
        for _ in 0..20 {
            file.append(text).await.unwrap();
        }
        file
    };
    let (ours, theirs) =
        tokio::join!(tokio::spawn(append(ours, b"ours..")), tokio::spawn(append(theirs, b"theirs")));
    let (ours, _theirs) = (ours.unwrap(), theirs.unwrap());
    let read = one.read("/big").await.unwrap();
    assert!(read[..bytes.len()] == bytes);
    let appended: Vec<_> = read[bytes.len()..].chunks(6).collect();
    for text in [b"ours..", b"theirs"] {
        assert_eq!(appended.iter().filter(|one| **one == text).count(), 20);
    }
    assert_eq!(appended.len(), 40);

    ours.set_len(1_000_000).await.unwrap();
    ours.sync_all().await.unwrap();
    assert!(other.read("/big").await.unwrap() == bytes[..1_000_000]);
    // An unlinked file exists while it is open.
    other.remove_file("/big").await.unwrap();
    let mut read = [0; 10];
    assert_eq!(ours.read_at(&mut read, 500_000).await.unwrap(), 10);
    assert_eq!(read, bytes[500_000..500_010]);
}

/// Client-driven create, stat and remove, as in PVFS, are invisible to other clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_make_measure_and_remove_files_themselves() {
    let url = common::with_data_servers(3);
    let (one, other) = (connect(&url).await, connect(&url).await);
    one.create_dir("/dir").await.unwrap();
    for (setting, value) in [("stuffing", "false"), ("create", "client")] {
        one.set_xattr("/dir", format!("user.espalier.{setting}"), value.as_bytes()).await.unwrap();
    }
    one.create_file("/dir/empty", 0o640).await.unwrap();
    assert_eq!(one.messages().data, 1, "the client creates the datafiles");
    let met = other.metadata("/dir/empty").await.unwrap();
    assert_eq!((met.len(), met.nlink(), met.permissions() & 0o777), (0, 1, 0o640));
    assert_eq!(other.messages().data, 1, "the client requests their sizes");
    let mut new = OpenOptions::new();
    new.write(true).create_new(true);
    assert_eq!(new.open(&other, "/dir/empty").await.unwrap_err().kind(), ErrorKind::AlreadyExists);

    let bytes = vec![7; 200_000];
    one.write("/dir/file", &bytes).await.unwrap();
    let (met, before) = (other.metadata("/dir/file").await.unwrap(), other.messages().data);
    assert_eq!((met.len(), other.read("/dir/file").await.unwrap()), (200_000, bytes));
    assert!(other.messages().data > before);
    // An open file can be read after its unlink.
    let open = OpenOptions::new().read(true).open(&other, "/dir/file").await.unwrap();
    one.remove_file("/dir/file").await.unwrap();
    assert_eq!(one.metadata("/dir/file").await.unwrap_err().kind(), ErrorKind::NotFound);
    let mut read = [0; 10];
    assert_eq!((open.read_at(&mut read, 150_000).await.unwrap(), read), (10, [7; 10]));
    drop(open);

    one.write("/dir/file", b"again").await.unwrap();
    one.remove_file("/dir/file").await.unwrap();
    assert_eq!(one.metadata("/dir/file").await.unwrap_err().kind(), ErrorKind::NotFound);
    one.remove_file("/dir/empty").await.unwrap();
    one.remove_dir("/dir").await.unwrap();
}
