//! Listeners.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use ucall_engine::{Engine, bind, bind_unix};

use crate::lab::{Lab, Peer, dial, write};
use crate::streams::this_process;

pub fn pauses_and_resumes_a_listener(lab: &mut Lab<impl Engine, impl Peer>) {
    let (listener, address) = lab.listen();
    let (_first, _) = lab.connect(address);
    lab.engine.pause(listener);
    lab.settle();
    let mut second = lab.dial(address);
    write(&mut second, b"let me in");
    lab.settle();
    assert!(lab.accepted.is_empty());
    lab.engine.resume(listener);
    let (_, socket) = lab.until(|lab| lab.accepted.pop());
    lab.expect(socket, b"let me in");
    lab.engine.pause(listener);
    lab.engine.resume(listener);
    lab.connect(address);
}

pub fn accepts_from_a_unix_socket(lab: &mut Lab<impl Engine>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let (unix, _file) = bind_unix(&path, 0o600).unwrap();
    let listener = lab.engine.listen(unix).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    let (from, socket) = lab.until(|lab| lab.accepted.pop());
    assert_eq!(from, listener);
    peer.write_all(b"hello").unwrap();
    lab.expect(socket, b"hello");
    match lab.engine.peer(socket) {
        Ok(found) => assert_eq!(found, this_process()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
    }
}

pub fn keeps_listeners_apart(lab: &mut Lab<impl Engine>) {
    let (left, left_address) = lab.listen();
    let (right, right_address) = lab.listen();
    for (listener, address) in [(left, left_address), (right, right_address), (left, left_address)]
    {
        let _peer = dial(address);
        assert_eq!(lab.until(|lab| lab.accepted.pop()).0, listener);
    }
}

pub fn stops_listening_when_closed(lab: &mut Lab<impl Engine>) {
    let (listener, address) = lab.listen();
    let (mut peer, socket) = lab.connect(address);
    lab.engine.close(listener);
    lab.settle();
    assert!(TcpStream::connect(address).is_err());
    write(&mut peer, b"still here");
    lab.expect(socket, b"still here");
    bind(address, false).unwrap();
}

pub fn rebinds_at_once_after_a_drop(lab: &mut Lab<impl Engine>) {
    let (_, address) = lab.listen();
    for _ in 0..20 {
        let (_peer, _) = lab.connect(address);
        // The old engine, with a listener and a connection, is dropped here.
        lab.engine = (lab.make)();
        lab.engine.listen(bind(address, false).unwrap()).unwrap();
    }
}
