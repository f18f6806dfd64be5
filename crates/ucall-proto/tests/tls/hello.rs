//! Client hellos up to the limit and beyond, in records and pieces of any size.

use ucall_proto::tls::{HANDSHAKE_MESSAGE_BYTES_MAX, TlsConnection, TlsError};

use crate::harness::{Authority, Endpoint, client, server};

const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 50];
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;

const SUPPORTED_GROUPS: u16 = 10;
const PADDING: u16 = 21;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;

/// A ClientHello (RFC 8446 section 4.1.2), taken apart.
struct Hello {
    /// The part before the extensions.
    front: Vec<u8>,
    extensions: Vec<(u16, Vec<u8>)>,
}

impl Hello {
    /// The hello of our own client.
    fn new() -> Self {
        let mut out = Vec::new();
        let name = "localhost".to_owned().try_into().unwrap();
        TlsConnection::client(client(&Authority::new()), name, &mut out).unwrap();
        let body = &out[9..];
        let suites = 35 + usize::from(body[34]);
        let compression =
            suites + 2 + usize::from(u16::from_be_bytes([body[suites], body[suites + 1]]));
        let (front, mut rest) = body.split_at(compression + 1 + usize::from(body[compression]));
        rest = &rest[2..];
        let mut extensions = Vec::new();
        while let [a, b, c, d, more @ ..] = rest {
            let (value, more) = more.split_at(usize::from(u16::from_be_bytes([*c, *d])));
            extensions.push((u16::from_be_bytes([*a, *b]), value.to_vec()));
            rest = more;
        }
        Self { front: front.to_vec(), extensions }
    }

    /// Inserts unknown groups before its own, with a key share for each.
    fn with_unknown_groups(mut self, count: u16, share_bytes: u16) -> Self {
        let groups = (0..count).map(|number| 0x4000 + number);
        let named: Vec<u8> = groups.clone().flat_map(u16::to_be_bytes).collect();
        let share = [&share_bytes.to_be_bytes()[..], &vec![7; share_bytes.into()]].concat();
        let shares: Vec<u8> =
            groups.flat_map(|group| [&group.to_be_bytes()[..], &share].concat()).collect();
        for (kind, value) in &mut self.extensions {
            let more = match *kind {
                SUPPORTED_GROUPS => &named,
                KEY_SHARE => &shares,
                _ => continue,
            };
            let list = [more, &value[2..]].concat();
            *value = [&u16::try_from(list.len()).unwrap().to_be_bytes()[..], &list].concat();
        }
        self
    }

    /// Pads it to that length, its own header of four bytes not counted.
    fn padded_to(mut self, len: usize) -> Self {
        let missing = len - self.message().len() + 4;
        if missing > 0 {
            self.extensions.push((PADDING, vec![0; missing - 4]));
        }
        assert_eq!(self.message().len(), 4 + len);
        self
    }

    fn in_tls12(mut self) -> Self {
        self.extensions.retain(|(kind, _)| *kind != SUPPORTED_VERSIONS);
        self
    }

    fn message(&self) -> Vec<u8> {
        let field = |text: &[u8]| [&(text.len() as u16).to_be_bytes()[..], text].concat();
        let extensions = self.extensions.iter();
        let extensions: Vec<u8> = extensions
            .flat_map(|(kind, value)| [&kind.to_be_bytes()[..], &field(value)].concat())
            .collect();
        let body = [&self.front[..], &field(&extensions)].concat();
        [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
    }

    /// The server's verdict on a hello, in records and pieces of the given sizes.
    fn heard_by_server(&self, record_bytes: usize, piece_bytes: usize) -> Endpoint {
        let certificate = Authority::new().sign("localhost");
        let config = server(&[certificate.identity()]);
        let mut end = Endpoint::new(TlsConnection::server(config).unwrap(), Vec::new());
        let record = |piece: &[u8]| {
            let len = (piece.len() as u16).to_be_bytes();
            [&[HANDSHAKE, 3, 1], &len[..], piece].concat()
        };
        let records: Vec<u8> = self.message().chunks(record_bytes).flat_map(record).collect();
        for piece in records.chunks(piece_bytes) {
            end.receive(piece);
        }
        end
    }

    #[track_caller]
    fn is_taken(&self) {
        for (record_bytes, piece_bytes) in CUTS {
            let end = self.heard_by_server(record_bytes, piece_bytes);
            assert!(end.error.is_none(), "{:?} {record_bytes} {piece_bytes}", end.error);
            assert_eq!((end.out[0], end.out[5]), (HANDSHAKE, SERVER_HELLO));
        }
    }
}

const CUTS: [(usize, usize); 4] =
    [(16 << 10, 1 << 20), (16 << 10, 1000), (1000, 1 << 20), (100, 4096)];

#[test]
fn groups_that_nobody_knows_are_passed_over_however_many_they_are() {
    for count in [0, 1, 100, 4356] {
        Hello::new().with_unknown_groups(count, 1).is_taken();
    }
    Hello::new().with_unknown_groups(4356, 1).in_tls12().is_taken();
    // As many as fit, each with a share.
    Hello::new().with_unknown_groups(4330, 9).is_taken();
}

#[test]
fn a_hello_has_a_longest_length() {
    Hello::new().padded_to(HANDSHAKE_MESSAGE_BYTES_MAX).is_taken();
    Hello::new().in_tls12().padded_to(HANDSHAKE_MESSAGE_BYTES_MAX).is_taken();
    for len in [HANDSHAKE_MESSAGE_BYTES_MAX + 1, HANDSHAKE_MESSAGE_BYTES_MAX + 30] {
        let hello = Hello::new().padded_to(len);
        for (record_bytes, piece_bytes) in CUTS {
            let end = hello.heard_by_server(record_bytes, piece_bytes);
            assert!(matches!(end.error, Some(TlsError::TooLong)), "{:?}", end.error);
            assert_eq!(end.out, ALERT);
        }
    }
}

#[test]
fn a_hello_in_tiny_records_has_a_longest_length_with_them() {
    // A record of one byte has six.
    let hello = Hello::new().padded_to(20_000);
    assert!(hello.heard_by_server(1, 4096).error.is_none());
    let hello = Hello::new().padded_to(30_000);
    let end = hello.heard_by_server(1, 4096);
    assert!(matches!(end.error, Some(TlsError::TooLong)), "{:?}", end.error);
    assert_eq!(end.out, ALERT);
}
