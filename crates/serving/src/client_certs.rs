//! Whose client certificate it is, by the authorities of now.
//!
//! In: the certificates that a peer has shown. Out: the user they name, if an authority vouches for it. The
//! authorities are those of a file, or those that the cluster publishes, which are read again in the background
//! while certificates are shown; a client that is known by those there are does not wait for that. Verification takes CPU
//! that a stranger decides on, so it is done on another thread, one at a time.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use tokio::{
    sync::{Notify, Semaphore, watch},
    task::spawn_blocking,
    time::Instant,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_util::task::AbortOnDropHandle;

use super::{options::Options, reviews::Reviewer, tls::Authorities, user::User};

/// Age from which the cluster's authorities are read again in the background. KCM watches them.
pub(super) const AUTHORITIES_REFRESH: Duration = Duration::from_secs(30);
/// Age from which they are not relied on before they have been read again, unless that fails.
pub(super) const AUTHORITIES_AGE: Duration = Duration::from_mins(1);
/// Least time between two reads, with any certificates shown.
pub(super) const AUTHORITIES_RETRY: Duration = Duration::from_secs(5);

/// SHA-256.
pub(super) type Hash = [u8; 32];

/// The other end of a TLS connection.
#[derive(Clone, Debug)]
pub struct TlsPeer {
    /// Where it is.
    pub address: IpAddr,
    certificates: Arc<[CertificateDer<'static>]>,
    /// What tells its certificates from others.
    pub(super) digest: Hash,
}

impl TlsPeer {
    /// A peer with the certificates that it has shown, its own first; it holds the key.
    pub fn new(address: IpAddr, certificates: Arc<[CertificateDer<'static>]>) -> Self {
        let mut digest = Sha256::new();
        for certificate in certificates.iter() {
            // So that the same bytes divided otherwise are something else.
            digest.update(certificate.len().to_be_bytes());
            digest.update(certificate);
        }
        Self { address, certificates, digest: digest.finalize().into() }
    }

    /// Whether it has shown any.
    pub(crate) fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }
}

/// A read of the cluster's authorities that has ended.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    ended: Instant,
    succeeded: bool,
}

/// Reads the cluster's authorities on request, but one after the other and not too often.
#[derive(Debug)]
struct Lookup {
    wanted: Arc<Notify>,
    last: watch::Receiver<Option<Attempt>>,
    _reading: AbortOnDropHandle<()>,
}

impl Lookup {
    fn start(reviewer: Arc<Reviewer>, authorities: Arc<Authorities>) -> Self {
        let wanted = Arc::new(Notify::new());
        let (sender, last) = watch::channel(None::<Attempt>);
        let asked = Arc::clone(&wanted);
        let reading = tokio::spawn(async move {
            loop {
                asked.notified().await;
                // A client that wanted it while it was read has it.
                if sender.borrow().is_some_and(|last| last.ended.elapsed() < AUTHORITIES_RETRY) {
                    continue;
                }
                let succeeded = match reviewer.authorities().await {
                    Ok(Some(pem)) => authorities.replace(pem.as_bytes()).map(|_| true),
                    Ok(None) => {
                        authorities.clear();
                        Ok(true)
                    }
                    // Those known before stay, as with KCM.
                    Err(_) => Ok(false),
                };
                let succeeded = succeeded.unwrap_or_else(|problem| {
                    tracing::warn!(
                        problem,
                        "the cluster's authorities of client certificates cannot be read"
                    );
                    false
                });
                sender.send_replace(Some(Attempt { ended: Instant::now(), succeeded }));
            }
        });
        Self { wanted, last, _reading: AbortOnDropHandle::new(reading) }
    }

    /// Waits until they have been read, if that was longer ago than `age`.
    async fn wait(&self, age: Duration) {
        let mut last = self.last.clone();
        if last.borrow_and_update().is_some_and(|last| last.ended.elapsed() < age.max(AUTHORITIES_RETRY)) {
            return;
        }
        self.wanted.notify_one();
        // The task ends with this.
        let _ = last.changed().await;
    }

    /// Waits if what is known cannot be relied on, and looks after it otherwise.
    async fn prepare(&self) {
        let last = *self.last.borrow();
        match last {
            None => self.wait(AUTHORITIES_RETRY).await,
            // The API server is away. Those who are known must not wait for it.
            Some(last) if !last.succeeded => self.wanted.notify_one(),
            Some(last) if last.ended.elapsed() >= AUTHORITIES_AGE => self.wait(AUTHORITIES_AGE).await,
            Some(last) if last.ended.elapsed() >= AUTHORITIES_REFRESH => self.wanted.notify_one(),
            Some(_) => {}
        }
    }
}

/// Where the authorities come from.
#[derive(Debug)]
enum Source {
    File(PathBuf),
    Cluster(Lookup),
    Nowhere,
}

/// Tells whose certificates they are.
#[derive(Debug)]
pub(super) struct ClientCertificates {
    /// What was verified before has to be verified again when their generation changes.
    pub(super) authorities: Arc<Authorities>,
    source: Source,
    verifying: Semaphore,
}

impl ClientCertificates {
    /// By the authorities that the options name. Has to be called within a runtime.
    ///
    /// # Errors
    /// `--client-ca-file` cannot be used.
    pub(super) fn new(options: &Options, reviewer: &Arc<Reviewer>) -> Result<Self, String> {
        let authorities = Arc::new(Authorities::default());
        let source = match &options.client_ca_file {
            Some(file) => Source::File(file.clone()),
            None if options.skip_lookup => Source::Nowhere,
            None => Source::Cluster(Lookup::start(Arc::clone(reviewer), Arc::clone(&authorities))),
        };
        let certificates = Self { authorities, source, verifying: Semaphore::new(1) };
        certificates.reload()?;
        Ok(certificates)
    }

    /// Whether there is a file to read again.
    pub(super) fn is_in_file(&self) -> bool {
        matches!(self.source, Source::File(_))
    }

    /// Reads `--client-ca-file` again. Returns whether it has changed. Blocks.
    ///
    /// # Errors
    /// It cannot be used: the authorities known before stay.
    pub(super) fn reload(&self) -> Result<bool, String> {
        let Source::File(file) = &self.source else { return Ok(false) };
        let read = std::fs::read(file).map_err(|error| error.to_string());
        let changed = read.and_then(|pem| self.authorities.replace(&pem));
        changed.map_err(|problem| format!("--client-ca-file {}: {problem}", file.display()))
    }

    /// Waits for the first answer about the authorities, and sees to it that they stay fresh. No request waits while
    /// no certificate is shown: an idle daemon sends nothing.
    pub(super) async fn prepare(&self) {
        if let Source::Cluster(lookup) = &self.source {
            lookup.prepare().await;
        }
    }

    /// Has the authorities read again, as those known do not vouch for a client. Returns whether they have changed.
    pub(super) async fn renew(&self) -> bool {
        let Source::Cluster(lookup) = &self.source else { return false };
        let before = self.authorities.generation();
        lookup.wait(AUTHORITIES_RETRY).await;
        self.authorities.generation() != before
    }

    /// The user whom a peer's certificates name, if one of the authorities vouches for it now.
    pub(super) async fn verify(&self, peer: &TlsPeer) -> Option<User> {
        // The semaphore is never closed.
        let _turn = self.verifying.acquire().await;
        let (authorities, chain) = (Arc::clone(&self.authorities), Arc::clone(&peer.certificates));
        spawn_blocking(move || authorities.user(&chain, UnixTime::now())).await.ok().flatten()
    }
}
