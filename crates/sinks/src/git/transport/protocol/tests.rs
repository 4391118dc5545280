use std::sync::{Arc, Mutex};

use super::*;

const ID: &str = "1234567890123456789012345678901234567890";
const OTHER: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";

/// Delivers single bytes: a line may arrive in any number of pieces.
struct ByteByByte(Bytes);

#[async_trait]
impl Chunks for ByteByByte {
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError> {
        Ok((!self.0.is_empty()).then(|| self.0.split_to(1)))
    }
}

fn answer(lines: &[&[u8]]) -> ServiceAnswer {
    let mut text = Vec::new();
    for line in lines {
        if line.is_empty() {
            text.extend_from_slice(b"0000");
        } else {
            text.extend_from_slice(format!("{:04x}", line.len() + 4).as_bytes());
            text.extend_from_slice(line);
        }
    }
    ServiceAnswer::new(ByteByByte(text.into()))
}

#[derive(Clone, Default)]
struct KeptBytes(Arc<Mutex<Vec<u8>>>);

impl Write for KeptBytes {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn refs_are_read_with_and_without_the_service_line_of_http() {
    let first = format!("{ID} HEAD\0side-band-64k symref=HEAD:refs/heads/main agent=x\n");
    let main = format!("{ID} refs/heads/main\n");
    let tag = format!("{OTHER} refs/tags/v1");
    let peeled = format!("{ID} refs/tags/v1^{{}}\n");
    let lines = [first.as_bytes(), main.as_bytes(), tag.as_bytes(), peeled.as_bytes(), b""];
    let http = [&[b"# service=git-upload-pack\n".as_slice(), b""], lines.as_slice()].concat();
    for lines in [lines.to_vec(), http] {
        let found = answer(&lines).advertisement().await.unwrap();
        assert_eq!(found.head.as_deref(), Some("refs/heads/main"));
        let refs: Vec<_> = found.refs.iter().map(|(name, id)| format!("{name} {id}")).collect();
        assert_eq!(refs, [format!("refs/heads/main {ID}"), format!("refs/tags/v1 {OTHER}")]);
        assert!(found.capabilities.contains(&"side-band-64k".to_owned()));
    }
    let none = format!("{} capabilities^{{}}\0report-status", Oid::ZERO_SHA1);
    let found = answer(&[none.as_bytes(), b""]).advertisement().await.unwrap();
    assert!(found.refs.is_empty() && found.capabilities == ["report-status"]);
}

#[tokio::test]
async fn an_answer_that_is_not_the_git_protocol_is_refused() {
    let sha256 = format!("{} capabilities^{{}}\0object-format=sha256", "0".repeat(64));
    for (text, part) in [
        ("<!DOCTYPE html>".to_owned(), "not Git's protocol"),
        ("0003".to_owned(), "not Git's protocol"),
        ("fff1x".to_owned(), "not Git's protocol"),
        (format!("{:04x}{sha256}0000", sha256.len() + 4), "SHA-256"),
        ("0013ERR not found\n0000".to_owned(), "no such repository"),
        ("003f".to_owned(), "in the middle"),
        (String::new(), "in the middle"),
    ] {
        let error = ServiceAnswer::new(ByteByByte(text.clone().into())).advertisement().await.unwrap_err();
        let error = error.into_error("read").to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[tokio::test]
async fn a_pack_is_read_from_between_other_lines() {
    let shallow = format!("shallow {ID}");
    let unshallow = format!("unshallow {OTHER}");
    let ack = format!("ACK {ID} common\n");
    let kept = KeptBytes::default();
    let lines: &[&[u8]] = &[
        shallow.as_bytes(),
        unshallow.as_bytes(),
        b"",
        ack.as_bytes(),
        b"NAK\n",
        b"\x02Counting",
        b"\x01PACK",
        b"\x01",
        b"\x01data",
        b"",
    ];
    let known = [Oid::from_str(OTHER).unwrap()];
    let found = answer(lines).pack(true, &known, Box::new(kept.clone())).await.unwrap();
    assert_eq!(found, [Oid::from_str(ID).unwrap()]);
    assert_eq!(*kept.0.lock().unwrap(), b"PACKdata");

    let ended: &[&[u8]] = &[b"NAK\n", b"\x01PACK"];
    let error = answer(ended).pack(false, &[], Box::new(KeptBytes::default())).await.unwrap_err();
    assert!(matches!(error, TransportError::Ended), "{error:?}");
    let refused: &[&[u8]] = &[b"NAK\n", b"\x03out of memory", b""];
    let error = answer(refused).pack(false, &[], Box::new(KeptBytes::default())).await.unwrap_err();
    assert!(matches!(error, TransportError::RefusedByServer(_)), "{error:?}");
}

#[tokio::test]
async fn a_pack_that_cannot_be_stored_is_an_error() {
    struct FullDisk;
    impl Write for FullDisk {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut lines: Vec<&[u8]> = vec![b"NAK\n"];
    lines.extend([b"\x01data".as_slice(); 100]);
    lines.push(b"");
    let error = answer(&lines).pack(false, &[], Box::new(FullDisk)).await.unwrap_err();
    assert!(matches!(error, TransportError::NotStored(_)), "{error:?}");
}

#[tokio::test]
async fn a_report_distinguishes_a_concurrent_push_from_a_rule_that_forbids_the_push() {
    let report = |unpack: &str, line: &str| {
        let mut inner = Vec::new();
        write_line(&mut inner, unpack);
        write_line(&mut inner, line);
        inner.extend_from_slice(b"0000");
        // Cut in the middle of a line.
        let (first, second) = inner.split_at(7);
        let band = |data: &[u8]| [b"\x01", data].concat();
        let lines = [b"\x02remote: see\nthe rules\n".to_vec(), band(first), band(second), Vec::new()];
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        answer(&lines).report("refs/heads/main")
    };
    assert_eq!(report("unpack ok\n", "ok refs/heads/main\n").await.unwrap(), Ok(()));
    for why in ["non-fast-forward", "failed to update ref", "cannot lock ref 'x': is at 1 but expected 2"] {
        let outcome = report("unpack ok\n", &format!("ng refs/heads/main {why}\n")).await.unwrap();
        assert!(matches!(outcome, Err(RejectedPush::NonFastForward(_))), "{outcome:?}");
    }
    for (why, expected) in [
        ("pre-receive hook declined", "a hook of the server declined it"),
        ("protected branch hook declined", "the branch is protected"),
        ("deletion prohibited", "the server does not permit it"),
        ("what-the-server-said", "the server refused the ref"),
    ] {
        let outcome = report("unpack ok\n", &format!("ng refs/heads/main {why}\n")).await.unwrap();
        assert_eq!(outcome, Err(RejectedPush::Refused(expected.into())));
    }
    let error =
        report("unpack index-pack failed\n", "ng refs/heads/main unpacker error\n").await.unwrap_err();
    assert!(matches!(&error, TransportError::RefusedByServer(RefusalMeaning::Other)), "{error:?}");
    let silent = report("unpack ok\n", "ok refs/heads/other\n").await.unwrap_err();
    assert!(matches!(silent, TransportError::Ended), "{silent:?}");
}

#[test]
fn requests_use_only_capabilities_of_the_server() {
    let advertised = |capabilities: &[&str]| AdvertisedRefs {
        capabilities: capabilities.iter().map(|&capability| capability.to_owned()).collect(),
        ..AdvertisedRefs::default()
    };
    let id = Oid::from_str(ID).unwrap();
    let old = fetch_request(&advertised(&["side-band"]), id, &[], None, &[]).unwrap_err();
    assert!(matches!(old, TransportError::Malformed(_)));
    let complete = fetch_request(&advertised(&["side-band-64k"]), id, &[id], None, &[]).unwrap();
    let text = String::from_utf8(complete.to_vec()).unwrap();
    assert!(text.ends_with(&format!("00000032have {ID}\n0009done\n")), "{text}");
    let part = fetch_request(&advertised(&["side-band-64k"]), id, &[], Some(1), &[]).unwrap_err();
    assert!(matches!(part, TransportError::Malformed(why) if why.contains("part of the history")));
    let part = fetch_request(&advertised(&["side-band-64k", "shallow"]), id, &[], Some(1), &[id]).unwrap();
    let text = String::from_utf8(part.to_vec()).unwrap();
    assert!(text.contains(&format!("0035shallow {ID}\n000ddeepen 1\n0000")), "{text}");
}
