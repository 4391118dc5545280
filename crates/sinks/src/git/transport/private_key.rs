//! Private keys from Secrets: parsed, and decrypted with their passphrase at a bounded cost.
//!
//! The private key itself says how much work it takes to derive a key from the passphrase, up to 2^32 rounds,
//! and a tenant writes the Secret. So this work is read first, and a key that needs too much is refused before
//! anything is computed. The bounds allow about a second of work in a release build (docs/adr/0009).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use pkcs8::{EncryptedPrivateKeyInfoRef, pkcs5::pbes2};
use russh::keys::{self, PrivateKey, ssh_key::Kdf};

/// Maximum bytes of the text of a key. An RSA key with 16,384 bits, the most that `ssh-keygen` makes, has 12,700.
/// Checking an RSA key takes time that grows with the square of its size: minutes for one that fills a Secret.
const MAX_TEXT_BYTES: u64 = 16 << 10;
/// Maximum rounds of bcrypt. `ssh-keygen` writes 16 or 24, and `ssh-keygen -a 100` is common advice.
const MAX_BCRYPT_ROUNDS: u32 = 100;
/// Maximum iterations of PBKDF2. OpenSSL writes 2,048; advice for passwords goes up to some 600,000.
const MAX_PBKDF2_ITERATIONS: u32 = 1_000_000;
/// Maximum bytes of memory for scrypt. OpenSSL uses 16 MiB.
const MAX_SCRYPT_BYTES: u64 = 64 << 20;
/// Maximum KiB of memory for Argon2, in one pass and in all passes. PuTTY uses 8 MiB and a few dozen passes.
const MAX_ARGON2_KIB: u64 = 64 << 10;
const MAX_ARGON2_KIB_IN_ALL_PASSES: u64 = 1 << 20;

const UNREADABLE: &str =
    "a private key that cannot be read; write what ssh-keygen makes, from -----BEGIN to the end";

/// How to write a key again so that its passphrase takes less work.
const WITH_SSH_KEYGEN: &str = "ssh-keygen -p -a 16 -f FILE";
const WITH_PUTTYGEN: &str = "puttygen FILE -O private-openssh-new -o NEW";

/// Parses a private key from a Secret. An error describes the format only, never the content of the key.
pub(in crate::git) fn private_key(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, String> {
    let bytes = text.len() as u64;
    if bytes > MAX_TEXT_BYTES {
        return Err(format!(
            "a private key of {bytes} bytes, at most {MAX_TEXT_BYTES} are allowed; make a key with \
             ssh-keygen -t ed25519"
        ));
    }
    if passphrase.is_some() {
        check_work(text.trim())?;
    }
    // Secrets written by hand often lack the newline at the end.
    match keys::decode_secret_key(&format!("{}\n", text.trim()), passphrase) {
        Ok(key) => Ok(key),
        Err(keys::Error::KeyIsEncrypted) => {
            Err("a private key with a passphrase and no key passphrase; add it".into())
        }
        Err(_) if passphrase.is_some() => {
            Err("a private key that its passphrase does not open, or that cannot be read".into())
        }
        Err(_) => Err(UNREADABLE.into()),
    }
}

/// Refuses keys whose passphrase needs too much work.
fn check_work(text: &str) -> Result<(), String> {
    if text.starts_with("PuTTY-User-Key-File-") {
        return check_putty(text);
    }
    // With two keys it would depend on the parser which one is used.
    if text.lines().filter(|line| line.starts_with("-----BEGIN ")).count() > 1 {
        return Err("more than one private key; write one".into());
    }
    let body = text.lines().skip_while(|line| !line.starts_with("-----BEGIN ")).skip(1);
    let body = body.take_while(|line| !line.starts_with("-----END "));
    let is_base64 = |line: &&str| line.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b));
    let body: String = body.filter(is_base64).collect();
    // The parser refuses a text that cannot be decoded here as well.
    let Ok(body) = STANDARD.decode(body) else { return Err(UNREADABLE.into()) };
    if let Ok(key) = PrivateKey::from_bytes(&body)
        && let Kdf::Bcrypt { rounds, .. } = key.kdf()
    {
        return check_limit("rounds of bcrypt", (*rounds).into(), MAX_BCRYPT_ROUNDS.into(), WITH_SSH_KEYGEN);
    }
    if let Ok(key) = EncryptedPrivateKeyInfoRef::try_from(&*body)
        && let Some(scheme) = key.encryption_algorithm.pbes2()
    {
        return check_pkcs8(&scheme.kdf);
    }
    Ok(())
}

fn check_pkcs8(kdf: &pbes2::Kdf) -> Result<(), String> {
    if let Some(pbkdf2) = kdf.pbkdf2() {
        let iterations = pbkdf2.iteration_count.into();
        check_limit("iterations of PBKDF2", iterations, MAX_PBKDF2_ITERATIONS.into(), WITH_SSH_KEYGEN)
    } else if let Some(scrypt) = kdf.scrypt() {
        let factors = [128, scrypt.block_size.into(), scrypt.parallelization.into()];
        let bytes = factors.into_iter().fold(scrypt.cost_parameter, u64::saturating_mul);
        check_limit("bytes of scrypt", bytes, MAX_SCRYPT_BYTES, WITH_SSH_KEYGEN)
    } else {
        Err(UNREADABLE.into())
    }
}

fn check_putty(text: &str) -> Result<(), String> {
    // If a name is repeated, its largest value counts, because parsers differ in which one they use.
    let number = |name: &str| {
        let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        values.map(|value| value.parse().unwrap_or(u64::MAX)).max().unwrap_or(0)
    };
    let (memory, passes) = (number("Argon2-Memory"), number("Argon2-Passes"));
    check_limit("KiB of Argon2", memory, MAX_ARGON2_KIB, WITH_PUTTYGEN)?;
    let in_all_passes = memory.saturating_mul(passes);
    check_limit("KiB of Argon2 in all passes", in_all_passes, MAX_ARGON2_KIB_IN_ALL_PASSES, WITH_PUTTYGEN)
}

fn check_limit(what: &str, needed: u64, limit: u64, command: &str) -> Result<(), String> {
    if needed <= limit {
        return Ok(());
    }
    Err(format!(
        "a private key whose passphrase takes {needed} {what}, at most {limit} are allowed; write the key \
         anew with {command}"
    ))
}

#[cfg(test)]
mod tests {
    use pkcs8::der::{Encode as _, asn1::OctetStringRef};

    use super::*;

    fn pem(label: &str, body: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(body))
    }

    /// A key that no passphrase decrypts, in the format of `ssh-keygen`.
    fn openssh(rounds: u32) -> String {
        fn push_text(bytes: &mut Vec<u8>, text: &[u8]) {
            bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            bytes.extend(text);
        }
        let mut options = Vec::new();
        push_text(&mut options, &[7; 16]);
        options.extend(rounds.to_be_bytes());
        let mut public = Vec::new();
        push_text(&mut public, b"ssh-ed25519");
        push_text(&mut public, &[9; 32]);
        let mut key = b"openssh-key-v1\0".to_vec();
        push_text(&mut key, b"aes256-ctr");
        push_text(&mut key, b"bcrypt");
        push_text(&mut key, &options);
        key.extend(1_u32.to_be_bytes());
        push_text(&mut key, &public);
        push_text(&mut key, &[5; 160]);
        pem("OPENSSH PRIVATE KEY", &key)
    }

    fn pkcs8(scheme: pbes2::Parameters) -> String {
        let encrypted_data = OctetStringRef::new(&[5; 64]).unwrap();
        let key = EncryptedPrivateKeyInfoRef { encryption_algorithm: scheme.into(), encrypted_data };
        pem("ENCRYPTED PRIVATE KEY", &key.to_der().unwrap())
    }

    fn pbkdf2(iterations: u32) -> String {
        pkcs8(pbes2::Parameters::generate_pbkdf2_sha256_aes256cbc(iterations, &[1; 16], [2; 16]).unwrap())
    }

    /// With a cost of 2 to the power of `log_cost`.
    fn scrypt(log_cost: u8, block_size: u16, parallelization: u16) -> String {
        let kdf = pbes2::ScryptParams {
            salt: pbes2::Salt::new([1; 16]).unwrap(),
            cost_parameter: 1 << log_cost,
            block_size,
            parallelization,
            key_length: None,
        };
        let encryption = pbes2::EncryptionScheme::Aes256Cbc { iv: [2; 16] };
        pkcs8(pbes2::Parameters { kdf: kdf.into(), encryption })
    }

    fn putty(memory: &str, passes: &str) -> String {
        format!(
            "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: aes256-cbc\nComment: x\nPublic-Lines: 0\n\
             Key-Derivation: Argon2id\nArgon2-Memory: {memory}\nArgon2-Passes: {passes}\n\
             Argon2-Parallelism: 1\nArgon2-Salt: 00\nPrivate-Lines: 0\nPrivate-MAC: 00\n"
        )
    }

    #[test]
    fn a_key_whose_passphrase_takes_too_much_work_is_refused_before_decryption() {
        for (key, work) in [
            (
                openssh(MAX_BCRYPT_ROUNDS + 1),
                "101 rounds of bcrypt, at most 100 are allowed; write the key anew with ssh-keygen -p -a 16",
            ),
            (openssh(u32::MAX), "4294967295 rounds of bcrypt"),
            (pbkdf2(MAX_PBKDF2_ITERATIONS + 1), "1000001 iterations of PBKDF2"),
            (pbkdf2(100_000_000), "iterations of PBKDF2"),
            (pbkdf2(100_000_000).replace(" ENCRYPTED", ""), "iterations of PBKDF2"),
            (scrypt(20, 8, 1), "1073741824 bytes of scrypt, at most 67108864 are allowed"),
            (scrypt(14, 8, u16::MAX), "bytes of scrypt"),
            (scrypt(1, u16::MAX, u16::MAX), "bytes of scrypt"),
            (
                putty("1048576", "1"),
                "1048576 KiB of Argon2, at most 65536 are allowed; write the key anew with puttygen",
            ),
            (putty("8192", "1000000"), "8192000000 KiB of Argon2 in all passes"),
            (putty("8192\nArgon2-Memory: 4294967295", "1"), "4294967295 KiB"),
            (openssh(16) + &openssh(u32::MAX), "more than one private key"),
            (openssh(16) + &"A".repeat(16 << 10), "bytes, at most 16384 are allowed"),
        ] {
            let problem = private_key(&key, Some("hunter2")).unwrap_err();
            assert!(problem.contains(work), "{problem}");
        }
    }

    #[test]
    fn a_key_with_usual_work_is_decrypted_and_a_wrong_passphrase_is_an_error() {
        for key in [openssh(1), pbkdf2(2_048), putty("64", "1")] {
            let problem = private_key(&key, Some("hunter2")).unwrap_err();
            assert!(problem.contains("does not open"), "{problem}");
        }
        assert!(check_work(openssh(100).trim()).is_ok() && check_work(pbkdf2(600_000).trim()).is_ok());
        assert!(check_work(putty("8192", "40").trim()).is_ok());
        assert!(
            private_key(&openssh(16), None).unwrap_err().contains("add it"),
            "nothing is computed without"
        );
    }
}
