//! Who may read what: authentication and authorization as kube-controller-manager delegates them.
//!
//! In: a visitor's address, certificates and token. Out: a [`User`] who may read the path, or a
//! [`Denial`]. A client certificate counts first, then a bearer token (TokenReview); then the API server
//! is asked for either (SubjectAccessReview). Answers count for some seconds. Without an API server
//! nobody is let in. Of one peer only so many are refused in a while; then it is not even asked about.

use std::{
    net::IpAddr,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

use super::{
    connections::Peer,
    memory::Memory,
    options::Options,
    reviews::{ReviewError, Reviewer, Share},
    tls::Authorities,
    user::User,
};

/// Answers kept of each sort. A token or a user with its groups is some hundred bytes.
const ROOM: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Refusals of one peer that are asked for in [`SUSPICION`]. A scraper whose rights are missing makes one a scrape.
const MAX_REFUSALS: u32 = 10;
/// See [`MAX_REFUSALS`].
const SUSPICION: Duration = Duration::from_secs(10);
/// How old the cluster's authorities may be when somebody shows a certificate. KCM watches them.
const AUTHORITIES_AGE: Duration = Duration::from_mins(1);
/// The same when the certificate means nothing to those we know, or none are known.
const AUTHORITIES_RETRY: Duration = Duration::from_secs(5);

/// Somebody with a request.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// Where it comes from.
    pub address: IpAddr,
    /// The certificates it has shown, its own first; it holds the key.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// Why somebody is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Nobody known.
    Unauthenticated,
    /// Known, but not allowed to.
    Forbidden(String),
    /// Refused too often.
    Suspicious,
    /// Nobody can tell now.
    Unavailable(ReviewError),
}

impl Denial {
    /// Its status and what to tell the visitor, which is not why the API server could not be asked.
    #[must_use]
    pub fn told(&self, path: &str) -> (StatusCode, String) {
        match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "Unauthorized\n".to_owned()),
            Self::Forbidden(user) => {
                (StatusCode::FORBIDDEN, format!("forbidden: User {user:?} cannot get path {path:?}\n"))
            }
            Self::Suspicious => (StatusCode::TOO_MANY_REQUESTS, "refused too often: try later\n".to_owned()),
            Self::Unavailable(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "visitors cannot be reviewed now: try later\n".to_owned())
            }
        }
    }
}

/// Where the authorities of client certificates come from.
#[derive(Debug)]
enum Source {
    File(PathBuf),
    Cluster(tokio::sync::Mutex<Option<Instant>>),
    Nowhere,
}

type Hash = [u8; 32];

struct Memories {
    users: Memory<Hash, Arc<User>>,
    nobodies: Memory<Hash, ()>,
    allowed: Memory<Hash, ()>,
    forbidden: Memory<Hash, ()>,
    refusals: Memory<Peer, (u32, Instant)>,
}

/// Decides who may read what.
pub struct Doorkeeper {
    authentication: Reviewer,
    authorization: Reviewer,
    authorities: Authorities,
    source: Source,
    memories: Mutex<Memories>,
}

impl std::fmt::Debug for Doorkeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doorkeeper").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Doorkeeper {
    /// One that asks these.
    ///
    /// # Errors
    /// `--client-ca-file` cannot be used.
    pub fn new(options: &Options, authentication: Reviewer, authorization: Reviewer) -> Result<Self, String> {
        let source = match &options.client_ca_file {
            Some(file) => Source::File(file.clone()),
            None if options.skip_lookup => Source::Nowhere,
            None => Source::Cluster(tokio::sync::Mutex::default()),
        };
        let doorkeeper = Self {
            authentication,
            authorization,
            authorities: Authorities::default(),
            source,
            memories: Mutex::new(Memories {
                users: Memory::new(ROOM, options.token_ttl),
                nobodies: Memory::new(ROOM, options.token_ttl),
                allowed: Memory::new(ROOM, options.authorized_ttl),
                forbidden: Memory::new(ROOM, options.unauthorized_ttl),
                refusals: Memory::new(ROOM, SUSPICION),
            }),
        };
        doorkeeper.reload()?;
        Ok(doorkeeper)
    }

    /// Whether there is a file to read again.
    #[must_use]
    pub fn is_in_file(&self) -> bool {
        matches!(self.source, Source::File(_))
    }

    /// Reads `--client-ca-file` again. Returns whether it has changed. Blocks.
    ///
    /// # Errors
    /// It cannot be used: the authorities known before stay.
    pub fn reload(&self) -> Result<bool, String> {
        let Source::File(file) = &self.source else { return Ok(false) };
        let read = std::fs::read(file).map_err(|error| error.to_string());
        let changed = read.and_then(|pem| self.authorities.replace(&pem));
        changed.map_err(|problem| format!("--client-ca-file {}: {problem}", file.display()))
    }

    /// Whether a visitor shows anything to be known by.
    #[must_use]
    pub fn has_credentials(visitor: &Visitor, headers: &HeaderMap) -> bool {
        !visitor.certificates.is_empty() || bearer(headers).is_some()
    }

    /// Who it is, if it may do this to the path.
    ///
    /// # Errors
    /// See [`Denial`].
    pub async fn admit(
        &self,
        visitor: &Visitor,
        headers: &HeaderMap,
        verb: &str,
        path: &str,
    ) -> Result<Arc<User>, Denial> {
        let peer = Peer::from(visitor.address);
        let user = self.authenticate(peer, visitor, headers).await?;
        if user.may_everything() || self.may(peer, &user, verb, path).await? {
            return Ok(user);
        }
        Err(Denial::Forbidden(user.username.clone()))
    }

    async fn authenticate(
        &self,
        peer: Peer,
        visitor: &Visitor,
        headers: &HeaderMap,
    ) -> Result<Arc<User>, Denial> {
        if !visitor.certificates.is_empty()
            && let Some(user) = self.user_of_certificate(&visitor.certificates).await
        {
            return Ok(Arc::new(user));
        }
        let token = bearer(headers).ok_or(Denial::Unauthenticated)?;
        // Tokens are not kept: what is not there cannot be read.
        let hash = Sha256::digest(token).into();
        let share = {
            let mut memories = self.lock();
            let now = Instant::now();
            if let Some(user) = memories.users.get(&hash, now) {
                return Ok(user);
            }
            if memories.nobodies.get(&hash, now).is_some() {
                return Err(Denial::Unauthenticated);
            }
            if memories.users.remembers(&hash) {
                Share::Known
            } else {
                // Held against the peer until its token has proven good, or many at once would pass.
                memories.suspect(peer, now)?;
                Share::Stranger
            }
        };
        let answer = self.authentication.token(token, share).await;
        let mut memories = self.lock();
        let now = Instant::now();
        match answer {
            Ok(Some(user)) => {
                if share == Share::Stranger {
                    memories.absolve(peer);
                }
                let user = Arc::new(user);
                memories.users.put(hash, Arc::clone(&user), now);
                Ok(user)
            }
            Ok(None) => {
                memories.users.remove(&hash);
                memories.nobodies.put(hash, (), now);
                Err(Denial::Unauthenticated)
            }
            Err(error) => {
                if share == Share::Stranger {
                    memories.absolve(peer);
                }
                Err(Denial::Unavailable(error))
            }
        }
    }

    /// The user whom a certificate names, if the authorities of now vouch for it.
    async fn user_of_certificate(&self, chain: &[CertificateDer<'static>]) -> Option<User> {
        self.look_up(AUTHORITIES_AGE).await;
        let user = self.authorities.user(chain, UnixTime::now());
        if user.is_some() || !self.look_up(AUTHORITIES_RETRY).await {
            return user;
        }
        self.authorities.user(chain, UnixTime::now())
    }

    /// Asks for the cluster's authorities if those known are older than that. Returns whether they have changed.
    /// Nobody asks while no certificate is shown: an idle daemon sends nothing.
    async fn look_up(&self, age: Duration) -> bool {
        let Source::Cluster(last) = &self.source else { return false };
        // One asks, the others wait for it.
        let mut last = last.lock().await;
        let fresh = |asked: &Instant| asked.elapsed() < age.max(AUTHORITIES_RETRY);
        if last.as_ref().is_some_and(fresh) {
            return false;
        }
        *last = Some(Instant::now());
        let answer = match self.authentication.authorities().await {
            Ok(Some(pem)) => self.authorities.replace(pem.as_bytes()),
            Ok(None) => {
                self.authorities.clear();
                Ok(true)
            }
            // Those known before stay, as with KCM.
            Err(_) => return false,
        };
        answer.unwrap_or_else(|problem| {
            tracing::warn!(problem, "the cluster's authorities of client certificates cannot be read");
            false
        })
    }

    async fn may(&self, peer: Peer, user: &User, verb: &str, path: &str) -> Result<bool, Denial> {
        // The fields are told apart by their lengths and names.
        let question = serde_json::to_vec(&(user, verb, path)).unwrap_or_default();
        let hash: Hash = Sha256::digest(question).into();
        let share = {
            let mut memories = self.lock();
            let now = Instant::now();
            if memories.allowed.get(&hash, now).is_some() {
                return Ok(true);
            }
            if memories.forbidden.get(&hash, now).is_some() {
                return Ok(false);
            }
            if memories.allowed.remembers(&hash) {
                Share::Known
            } else {
                memories.suspect(peer, now)?;
                Share::Stranger
            }
        };
        let answer = self.authorization.access(user, verb, path, share).await;
        let mut memories = self.lock();
        if share == Share::Stranger && !matches!(answer, Ok(false)) {
            memories.absolve(peer);
        }
        let allowed = answer.map_err(Denial::Unavailable)?;
        let now = Instant::now();
        if allowed {
            memories.forbidden.remove(&hash);
            memories.allowed.put(hash, (), now);
        } else {
            memories.allowed.remove(&hash);
            memories.forbidden.put(hash, (), now);
        }
        Ok(allowed)
    }

    fn lock(&self) -> MutexGuard<'_, Memories> {
        // Valid between any two statements, so a panic elsewhere cannot spoil it.
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memories {
    /// Counts a refusal to come, if the peer may have one more.
    fn suspect(&mut self, peer: Peer, now: Instant) -> Result<(), Denial> {
        let (count, since) = self.refusals.get(&peer, now).unwrap_or((0, now));
        if count >= MAX_REFUSALS {
            return Err(Denial::Suspicious);
        }
        self.refusals.put(peer, (count + 1, since), since);
        Ok(())
    }

    /// Takes one back.
    fn absolve(&mut self, peer: Peer) {
        if let Some((count, since)) = self.refusals.get(&peer, Instant::now()) {
            self.refusals.put(peer, (count.saturating_sub(1), since), since);
        }
    }
}

/// The bearer token of a request.
// apiserver: pkg/authentication/request/bearertoken/bearertoken.go.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, rest) = value.split_once(' ')?;
    let token = rest.split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;
