//! Who may read what: authentication and authorization as kube-controller-manager delegates them.
//!
//! In: a peer's address, certificates and token. Out: a [`User`] who may read the path, or a [`Denial`]. A
//! client certificate counts first, then a bearer token (TokenReview); then the API server is asked for either
//! (SubjectAccessReview). Answers count for some seconds. Without an API server no client is let in. Of one peer
//! only so many are refused in a while; then it is not even asked about.

use std::{net::IpAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

pub use super::client_certs::TlsPeer;
use super::{
    client_certs::{ClientCertificates, Hash},
    options::Options,
    reviews::{ReviewError, Reviewer},
    ttl_cache::TtlCache,
    user::User,
};

/// Answers kept of each sort: more than strangers can have reviewed in a minute, in which a scraper comes again. A
/// token or a user with its groups is some hundred bytes.
const ROOM: NonZeroUsize = NonZeroUsize::new(2048).unwrap();
/// Refusals of one peer in [`REFUSAL_WINDOW`]. A scraper whose rights are missing makes one a scrape.
const MAX_REFUSALS: u32 = 10;
/// See [`MAX_REFUSALS`].
const REFUSAL_WINDOW: Duration = Duration::from_secs(10);
/// How long the verdict on a client's certificates counts. Go verifies them with each request; a certificate may
/// run out meanwhile.
const VERDICT_TTL: Duration = Duration::from_secs(5);

/// Why a client is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It is no known user.
    Unauthenticated,
    /// Known, but not allowed to.
    Forbidden(String),
    /// Refused too often.
    TooManyRefusals,
    /// It cannot be told now.
    Unavailable,
}

impl Denial {
    /// Its status and what to tell the client, which is not why the API server could not be asked.
    pub fn told(&self, verb: &str, path: &str) -> (StatusCode, String) {
        match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "Unauthorized\n".to_owned()),
            Self::Forbidden(user) => {
                (StatusCode::FORBIDDEN, format!("forbidden: User {user:?} cannot {verb} path {path:?}\n"))
            }
            Self::TooManyRefusals => {
                (StatusCode::TOO_MANY_REQUESTS, "refused too often: try later\n".to_owned())
            }
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "clients cannot be reviewed now: try later\n".to_owned())
            }
        }
    }
}

struct Caches {
    /// By the hash of a token.
    users: TtlCache<Hash, Arc<User>>,
    /// By the hash of certificates and of the generation of the authorities.
    certified: TtlCache<Hash, Arc<User>>,
    /// By the hash of user, verb and path.
    paths: TtlCache<Hash, ()>,
    refusals: TtlCache<IpAddr, (u32, Instant)>,
}

/// Decides who may read what.
#[derive(derive_more::Debug)]
#[debug("DelegatedAuth({certificates:?})")]
pub struct DelegatedAuth {
    authentication: Arc<Reviewer>,
    authorization: Reviewer,
    pub(super) certificates: ClientCertificates,
    caches: Mutex<Caches>,
}

impl DelegatedAuth {
    /// One that asks these. Has to be called within the runtime that serves.
    ///
    /// # Errors
    /// `--client-ca-file` cannot be used.
    pub fn new(options: &Options, authentication: Reviewer, authorization: Reviewer) -> Result<Self, String> {
        let authentication = Arc::new(authentication);
        let certificates = ClientCertificates::new(options, &authentication)?;
        let caches = Caches {
            users: TtlCache::new(ROOM, options.token_ttl, options.token_ttl),
            certified: TtlCache::new(ROOM, VERDICT_TTL, VERDICT_TTL),
            paths: TtlCache::new(ROOM, options.authorized_ttl, options.unauthorized_ttl),
            refusals: TtlCache::new(ROOM, REFUSAL_WINDOW, REFUSAL_WINDOW),
        };
        Ok(Self { authentication, authorization, certificates, caches: Mutex::new(caches) })
    }

    /// Whether a request shows anything to be known by.
    pub(crate) fn has_credentials(peer: &TlsPeer, headers: &HeaderMap) -> bool {
        peer.has_certificates() || bearer(headers).is_some()
    }

    /// Who it is, if it may do this to the path.
    ///
    /// # Errors
    /// See [`Denial`].
    pub async fn admit(
        &self,
        peer: &TlsPeer,
        headers: &HeaderMap,
        verb: &str,
        path: &str,
    ) -> Result<Arc<User>, Denial> {
        let from = peer.address.to_canonical();
        let user = self.authenticate(from, peer, headers).await?;
        if !user.may_everything() && !self.may(from, &user, verb, path).await? {
            return Err(Denial::Forbidden(user.username.clone()));
        }
        Ok(user)
    }

    async fn authenticate(
        &self,
        from: IpAddr,
        peer: &TlsPeer,
        headers: &HeaderMap,
    ) -> Result<Arc<User>, Denial> {
        let mut denial = Denial::Unauthenticated;
        if peer.has_certificates() {
            match self.user_of_certificate(from, peer).await {
                Ok(Some(user)) => return Ok(user),
                Ok(None) => {}
                Err(more) => denial = more,
            }
        }
        match bearer(headers) {
            Some(token) => self.user_of_token(from, token).await,
            None => Err(denial),
        }
    }

    async fn user_of_token(&self, from: IpAddr, token: &str) -> Result<Arc<User>, Denial> {
        // Tokens are not kept: what is not there cannot be read.
        let hash = Sha256::digest(token).into();
        let ask = async |is_again| Ok(self.authentication.token(token, is_again).await?.map(Arc::new));
        let user = self.answer(from, |caches| &mut caches.users, hash, ask).await?;
        user.ok_or(Denial::Unauthenticated)
    }

    /// The user whom the peer's certificates name, if the authorities of now vouch for it.
    async fn user_of_certificate(&self, from: IpAddr, peer: &TlsPeer) -> Result<Option<Arc<User>>, Denial> {
        self.certificates.prepare().await;
        let user = self.verdict(from, peer).await?;
        if user.is_some() || !self.certificates.renew().await {
            return Ok(user);
        }
        self.verdict(from, peer).await
    }

    /// The same by the authorities that are known, which counts for some seconds.
    async fn verdict(&self, from: IpAddr, peer: &TlsPeer) -> Result<Option<Arc<User>>, Denial> {
        let generation = self.certificates.authorities.generation().to_be_bytes();
        let hash = Sha256::new().chain_update(peer.digest).chain_update(generation).finalize().into();
        let verify = async |_| Ok(self.certificates.verify(peer).await.map(Arc::new));
        self.answer(from, |caches| &mut caches.certified, hash, verify).await
    }

    async fn may(&self, from: IpAddr, user: &User, verb: &str, path: &str) -> Result<bool, Denial> {
        // The fields are told apart by their lengths and names.
        let question = serde_json::to_vec(&(user, verb, path)).unwrap_or_default();
        let hash = Sha256::digest(question).into();
        let ask = async |is_again| {
            let allowed = self.authorization.access(user, verb, path, is_again).await?;
            Ok(allowed.then_some(()))
        };
        Ok(self.answer(from, |caches| &mut caches.paths, hash, ask).await?.is_some())
    }

    /// An answer that still counts, or a new one, which is kept. A question of which the answer was yes before is asked
    /// again. Any other is held against the peer until its answer is anything but no, or many at once would pass.
    async fn answer<V: Clone>(
        &self,
        from: IpAddr,
        kept: impl Fn(&mut Caches) -> &mut TtlCache<Hash, V>,
        hash: Hash,
        ask: impl AsyncFnOnce(bool) -> Result<Option<V>, ReviewError>,
    ) -> Result<Option<V>, Denial> {
        let is_again = {
            let mut caches = self.caches.lock();
            let now = Instant::now();
            if let Some(answer) = kept(&mut caches).get(&hash, now) {
                return Ok(answer.ok());
            }
            let is_again = kept(&mut caches).was_yes(&hash);
            if !is_again {
                caches.charge(from, now)?;
            }
            is_again
        };
        let answer = ask(is_again).await;
        let mut caches = self.caches.lock();
        if !is_again && !matches!(answer, Ok(None)) {
            caches.refund(from);
        }
        let answer = answer.map_err(|ReviewError| Denial::Unavailable)?;
        kept(&mut caches).put(hash, answer.clone(), Instant::now());
        Ok(answer)
    }
}

impl Caches {
    /// Counts a refusal to come, if the peer may have one more.
    fn charge(&mut self, peer: IpAddr, now: Instant) -> Result<(), Denial> {
        let (count, since) = self.refusals.get(&peer, now).and_then(Result::ok).unwrap_or((0, now));
        if count >= MAX_REFUSALS {
            return Err(Denial::TooManyRefusals);
        }
        self.refusals.put(peer, Some((count + 1, since)), since);
        Ok(())
    }

    /// Takes one back.
    fn refund(&mut self, peer: IpAddr) {
        if let Some(Ok((count, since))) = self.refusals.get(&peer, Instant::now()) {
            self.refusals.put(peer, Some((count.saturating_sub(1), since)), since);
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
pub(super) mod tests;
