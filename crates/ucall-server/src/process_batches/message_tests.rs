//! Batches and results that are read as they were written, and messages that were changed.

use ucall_proto::arrays::Kind;

use super::*;

fn whole(encoded: &Encoded<'_>) -> Bytes {
    let mut bytes = vec![0; encoded.len() as usize];
    for (at, piece) in encoded.pieces() {
        bytes[at as usize..][..piece.len()].copy_from_slice(piece);
    }
    bytes.into()
}

fn tensor(shape: &[usize]) -> Tensor {
    let dtype = DType::native(Kind::Float, 4);
    Tensor { dtype, shape: shape.to_vec(), is_fortran: false }
}

/// A part that is a `.npy`.
fn file(items: &[u8], shape: &[usize]) -> Parts {
    let mut file = Vec::new();
    npy::write_header(&mut file, &tensor(shape));
    file.extend_from_slice(items);
    let all = 0..file.len();
    Parts::new(file, vec![(all, None)])
}

const ROW: &[u8] = br#"[{"$part":0}]"#;

fn call<'a>(params: &'a [u8], parts: &'a Parts) -> SentCall<'a> {
    let (params, parts, origin) = (Some(params), Some(parts), b"a caller".to_vec());
    SentCall { params, parts, results: ResultFormat::Parts, origin }
}

#[test]
fn a_batch_is_read_as_it_was_written() {
    let parts = file(&[7; 12], &[3]);
    let (results, origin) = (ResultFormat::Json, Vec::new());
    let none = SentCall { params: None, parts: None, results, origin };
    let text = br#"[{"$part":0}]"#;
    let calls = [call(text, &parts), none, call(b"", &parts)];
    let timeout = Some(Duration::from_millis(20));
    let head = BatchHead { function: 7, timeout, is_repeatable: true };
    let message = whole(&Encoded::batch(head, &calls, false));
    assert_eq!(read_batch_head(&message), Ok((head, 3)));
    assert_eq!(whole(&Encoded::received(&message)), message);
    let read = read_batch(&message).unwrap();
    assert_eq!((read.head, read.calls.len()), (head, 3));
    let read = read.calls;
    assert_eq!(read[0].params.as_deref(), Some(&text[..]));
    assert_eq!(read[0].results, ResultFormat::Parts);
    assert_eq!(read[0].origin, b"a caller");
    let part = read[0].parts.as_ref().unwrap().get(0).unwrap();
    assert_eq!((part.bytes, part.tensor), (parts.get(0).unwrap().bytes, None));
    assert!(read[1].params.is_none() && read[1].parts.is_none() && read[1].origin.is_empty());
    assert_eq!(read[2].params.as_deref(), Some(&b""[..]));
}

#[test]
fn arrays_of_one_shape_lie_one_after_another() {
    let rows: Vec<Parts> = (0..3).map(|row| file(&[row; 12], &[3])).collect();
    let other = file(&[9; 16], &[4]);
    let calls: Vec<_> = rows.iter().chain([&other]).map(|parts| call(ROW, parts)).collect();
    let message = whole(&Encoded::batch(BatchHead::default(), &calls, true));
    let read = read_batch(&message).unwrap().calls;
    let part = |index: usize| read[index].parts.as_ref().unwrap().get(0).unwrap();
    let start = part(0).bytes.as_ptr() as usize;
    for row in 0..3 {
        assert_eq!(part(row).bytes.as_ptr() as usize, start + 12 * row);
        assert_eq!(part(row).bytes, [row as u8; 12]);
        assert_eq!(part(row).tensor, Some(&tensor(&[3])));
    }
    assert_eq!(part(3).bytes, [9; 16]);
    assert_eq!((part(3).bytes.as_ptr() as usize - start) % ALIGNMENT as usize, 0);
}

/// The calls of a JSON-RPC batch share the parts of its document.
#[test]
fn a_part_is_sent_once_and_only_to_calls_that_refer_to_it() {
    let items: Vec<u8> = (0..40).collect();
    let part = |row: usize| (row * 8..row * 8 + 8, Some(tensor(&[2])));
    let parts = Parts::new(items, (0..5).map(part).collect());
    let texts: Vec<String> =
        [[0, 3], [2, 4]].map(|[x, y]| format!(r#"[{{"$part":{x}}},{{"$part": {y} }}]"#)).into();
    let calls: Vec<_> = texts.iter().map(|text| call(text.as_bytes(), &parts)).collect();
    let encoded = Encoded::batch(BatchHead::default(), &calls, true);
    let read = read_batch(&whole(&encoded)).unwrap().calls;
    let (one, two) = (read[0].parts.as_ref().unwrap(), read[1].parts.as_ref().unwrap());
    assert!(Arc::ptr_eq(one, two) && one.get(1).is_none() && one.get(5).is_none());
    let at = |index: usize| one.get(index).unwrap().bytes.as_ptr() as usize;
    assert_eq!((at(2) - at(0), at(4) - at(3)), (8, 8), "rows of each param");
    assert_eq!(one.get(4).unwrap().bytes[0], 32);
}

#[test]
fn results_are_read_as_they_were_written() {
    let part = ResultPart { tensor: Some(tensor(&[2])), bytes: Bytes::from_static(&[3; 8]) };
    let bytes = ResultPart { tensor: None, bytes: Bytes::from_static(b"abc") };
    let text = Bytes::from_static(br#"[{"$part":0},{"$part":1}]"#);
    let results = [
        Ok(CallResult { text: text.clone(), parts: vec![part, bytes] }),
        Err(RpcError::new(-32602, "Invalid params").expected("int")),
        Err(RpcError::new(5, "no")),
    ];
    let read = read_results(&whole(&Encoded::results(&results))).unwrap();
    let first = read[0].as_ref().unwrap();
    assert_eq!(first.text, text);
    assert_eq!(first.parts[0].tensor, Some(tensor(&[2])));
    assert_eq!((&first.parts[0].bytes[..], &first.parts[1].bytes[..]), (&[3; 8][..], &b"abc"[..]));
    assert_eq!(read[1].as_ref().unwrap_err().data.as_deref(), Some(&b"\"int\""[..]));
    let last = read[2].as_ref().unwrap_err();
    assert_eq!((last.code, &last.message[..], &last.data), (5, "no", &None));
}

/// A process may write anything, so no cut and no changed byte may panic or read elsewhere.
#[test]
fn a_changed_message_is_refused_or_read_within_its_bytes() {
    let rows: Vec<Parts> = (0..2).map(|row| file(&[row; 12], &[3])).collect();
    let calls: Vec<_> = rows.iter().map(|parts| call(ROW, parts)).collect();
    let batch = whole(&Encoded::batch(BatchHead::default(), &calls, true));
    let text = Bytes::from_static(b"[1]");
    let results = [Ok(CallResult { text, parts: Vec::new() }), Err(RpcError::new(1, "no"))];
    let results = whole(&Encoded::results(&results));
    for message in [batch, results] {
        for len in 0..message.len() {
            let _ = (read_batch(&message.slice(..len)), read_results(&message.slice(..len)));
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = message.to_vec();
                changed[len] = byte;
                let changed = Bytes::from(changed);
                let _ = (read_batch(&changed), read_results(&changed));
            }
        }
        assert!(read_batch(&message.slice(..32)).is_err());
        assert!(read_results(&message.slice(..15)).is_err());
    }
}
