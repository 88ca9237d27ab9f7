//! The server's own certificate: made at start or read from files, and read again when those change.
//!
//! In: a [`CertificateSource`]. Out: what [`super::tls`] shows to clients. A pair of files that cannot
//! be used is an error at start; afterwards it is logged, and the last good pair stays. A certificate that
//! was made here is valid at any time, as clients can check it only by comparing it.

use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::RwLock;
use pem::Pem;
use tempfile::NamedTempFile;
use thiserror::Error;
use tokio_rustls::rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use x509_cert::{Certificate, der::Decode};

use super::options::CertificateSource;

/// Names of the files in `--cert-dir`; KCM's are called after it, too.
const PAIR: [&str; 2] = ["mooring.crt", "mooring.key"];

/// A certificate that cannot be used.
#[derive(Debug, Error)]
#[error("{}: {problem}", place.display())]
pub struct CertificateError {
    place: PathBuf,
    problem: String,
}

impl CertificateError {
    fn new(place: &Path, problem: impl fmt::Display) -> Self {
        Self { place: place.to_owned(), problem: problem.to_string() }
    }
}

/// Two files, and what was last read from them.
#[derive(Debug)]
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
    /// For comparing; a key is never kept as text.
    seen: RwLock<[u8; 32]>,
}

/// The certificate as it is now.
#[derive(Debug)]
pub struct OwnCertificate {
    current: RwLock<Arc<CertifiedKey>>,
    files: Option<Pair>,
}

impl OwnCertificate {
    /// Reads it, or makes it. `names` are those it is made for.
    ///
    /// # Errors
    /// The files cannot be read, written or used.
    pub fn load(source: &CertificateSource, names: &[String]) -> Result<Self, CertificateError> {
        let (certificate, key) = match source {
            CertificateSource::Memory => {
                let (certificate, key) = make(names)?;
                let current = certified(vec![certificate], key, Path::new("self-signed"))?;
                return Ok(Self { current: RwLock::new(Arc::new(current)), files: None });
            }
            CertificateSource::Files { certificate, key } => (certificate.clone(), key.clone()),
            CertificateSource::Folder(folder) => {
                let [certificate, key] = PAIR.map(|name| folder.join(name));
                let there =
                    |path: &Path| path.try_exists().map_err(|error| CertificateError::new(path, error));
                let half = |missing: &Path, there: &Path| {
                    let there = there.display();
                    let problem = format!("is missing, but {there} is there: give both, or remove that");
                    Err(CertificateError::new(missing, problem))
                };
                // apiserver: client-go's util/cert/io.go, CanReadCertAndKey.
                match (there(&certificate)?, there(&key)?) {
                    (true, true) => {}
                    (false, false) => write_pair(folder, &certificate, &key, names)?,
                    (true, false) => return half(&key, &certificate),
                    (false, true) => return half(&certificate, &key),
                }
                (certificate, key)
            }
        };
        let (current, seen) = read(&certificate, &key)?;
        let files = Pair { certificate, key, seen: RwLock::new(seen) };
        Ok(Self { current: RwLock::new(Arc::new(current)), files: Some(files) })
    }

    /// Whether there is something to read again.
    pub(crate) fn is_in_files(&self) -> bool {
        self.files.is_some()
    }

    /// Reads the files again. Returns whether they have changed. Blocks.
    ///
    /// # Errors
    /// They cannot be used: what is in use stays.
    pub fn reload(&self) -> Result<bool, CertificateError> {
        let Some(Pair { certificate, key, seen }) = &self.files else { return Ok(false) };
        let (fresh, hash) = read(certificate, key)?;
        let mut seen = seen.write();
        if *seen == hash {
            return Ok(false);
        }
        *seen = hash;
        *self.current.write() = Arc::new(fresh);
        Ok(true)
    }

    /// When the certificate in use expires, in seconds since 1970.
    pub fn expiry(&self) -> Option<i64> {
        expiry(self.current().cert.first()?)
    }

    /// The certificate in use.
    pub fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.current.read())
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// The certificates of a PEM file.
///
/// # Errors
/// There is none, or one cannot be read.
pub(crate) fn parse_bundle(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err("no certificate in it".to_owned()),
        Ok(chain) => Ok(chain),
        Err(error) => Err(error.to_string()),
    }
}

/// When the first certificate of a PEM file expires, in seconds since 1970.
pub fn expiry_of_pem(pem: &[u8]) -> Option<i64> {
    expiry(parse_bundle(pem).ok()?.first()?)
}

fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let until = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    i64::try_from(until.as_secs()).ok()
}

fn make(names: &[String]) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), CertificateError> {
    let made = rcgen::generate_simple_self_signed(names);
    let made = made.map_err(|error| CertificateError::new(Path::new("self-signed certificate"), error))?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    Ok((made.cert.into(), key))
}

/// KCM: apiserver's pkg/server/options/serving.go, MaybeDefaultWithSelfSignedCerts.
fn write_pair(
    folder: &Path,
    certificate: &Path,
    key: &Path,
    names: &[String],
) -> Result<(), CertificateError> {
    let (chain, secret) = make(names)?;
    fs::create_dir_all(folder).map_err(|error| CertificateError::new(folder, error))?;
    // Under another name first, which no file has yet: no reader sees half of it, and what is there by any name is neither
    // written to nor followed.
    let write = |path: &Path, tag: &str, der: &[u8], mode: u32| -> io::Result<()> {
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(pem::encode(&Pem::new(tag, der)).as_bytes())?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    // The key first: a reader that finds the certificate finds its key.
    write(key, "PRIVATE KEY", secret.secret_der(), 0o600)
        .map_err(|error| CertificateError::new(key, error))?;
    write(certificate, "CERTIFICATE", &chain, 0o644)
        .map_err(|error| CertificateError::new(certificate, error))
}

fn read(certificate: &Path, key: &Path) -> Result<(CertifiedKey, [u8; 32]), CertificateError> {
    use sha2::Digest;
    let text = |path: &Path| fs::read(path).map_err(|error| CertificateError::new(path, error));
    let (chain, secret) = (text(certificate)?, text(key)?);
    let hash = sha2::Sha256::new().chain_update(&chain).chain_update([0]).chain_update(&secret).finalize();
    let chain = parse_bundle(&chain).map_err(|problem| CertificateError::new(certificate, problem))?;
    let secret = PrivateKeyDer::from_pem_slice(&secret).map_err(|error| CertificateError::new(key, error))?;
    Ok((certified(chain, secret, certificate)?, hash.into()))
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    place: &Path,
) -> Result<CertifiedKey, CertificateError> {
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|error| CertificateError::new(place, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("mooring-certificates-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        folder
    }

    #[test]
    fn a_folder_keeps_what_is_made_in_it() {
        let folder = folder("kept");
        let source = CertificateSource::Folder(folder.clone());
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let first = OwnCertificate::load(&source, &names).unwrap();
        let mode = |name| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("mooring.key"), mode("mooring.crt")), (0o600, 0o644));
        let second = OwnCertificate::load(&source, &names).unwrap();
        assert_eq!(first.current().cert, second.current().cert);
        let memory = OwnCertificate::load(&CertificateSource::Memory, &names).unwrap();
        assert_ne!(first.current().cert, memory.current().cert);
        assert!(!memory.reload().unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_are_read_again_and_a_broken_pair_changes_nothing() {
        let folder = folder("reloaded");
        let names = ["localhost".to_owned()];
        OwnCertificate::load(&CertificateSource::Folder(folder.clone()), &names).unwrap();
        let [certificate, key] = PAIR.map(|name| folder.join(name));
        let source = CertificateSource::Files { certificate: certificate.clone(), key: key.clone() };
        let own = OwnCertificate::load(&source, &[]).unwrap();
        let first = own.current();
        assert!(!own.reload().unwrap());
        // What is made here is valid until the year 4096.
        assert_eq!(own.expiry(), Some(67_090_118_400));
        assert_eq!(expiry_of_pem(&fs::read(&certificate).unwrap()), own.expiry());
        assert_eq!(expiry_of_pem(b"rubbish"), None);

        // Half of a rotation: the new certificate with the old key.
        let (other, secret) = make(&names).unwrap();
        fs::write(&certificate, pem::encode(&Pem::new("CERTIFICATE", other.to_vec()))).unwrap();
        assert!(own.reload().is_err());
        assert_eq!(own.current().cert, first.cert);
        fs::write(&key, pem::encode(&Pem::new("PRIVATE KEY", secret.secret_der()))).unwrap();
        assert!(own.reload().unwrap());
        assert_eq!(own.current().cert, [other]);

        fs::write(&key, "rubbish").unwrap();
        assert!(own.reload().unwrap_err().to_string().contains("mooring.key: "));
        fs::remove_file(&certificate).unwrap();
        assert!(own.reload().unwrap_err().to_string().contains("mooring.crt: "));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// What another user who may write to the folder has put there is neither followed nor taken over.
    #[test]
    fn a_key_is_written_to_a_file_of_its_own_alone() {
        let folder = folder("own");
        fs::create_dir_all(&folder).unwrap();
        let elsewhere = folder.join("elsewhere");
        let [certificate, key] = PAIR.map(|name| folder.join(name));
        for file in [&certificate, &key] {
            std::os::unix::fs::symlink(&elsewhere, file).unwrap();
        }
        OwnCertificate::load(&CertificateSource::Folder(folder.clone()), &["localhost".to_owned()]).unwrap();
        assert!(!elsewhere.exists());
        let of_key = fs::symlink_metadata(&key).unwrap();
        assert!(of_key.is_file());
        assert_eq!(of_key.permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing is left over");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn half_of_a_pair_is_a_mistake_and_stays() {
        let folder = folder("half");
        let source = CertificateSource::Folder(folder.clone());
        let names = ["localhost".to_owned()];
        OwnCertificate::load(&source, &names).unwrap();
        let pair = PAIR.map(|name| folder.join(name));
        for (missing, stays) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let kept = fs::read(stays).unwrap();
            let removed = fs::read(missing).unwrap();
            fs::remove_file(missing).unwrap();
            let error = OwnCertificate::load(&source, &names).unwrap_err().to_string();
            let expected = format!("{}: is missing, but {} is there: ", missing.display(), stays.display());
            assert!(error.starts_with(&expected), "{error}");
            assert_eq!(fs::read(stays).unwrap(), kept);
            fs::write(missing, removed).unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
