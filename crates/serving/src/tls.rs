//! TLS as the flags want it, and who a client's certificate makes its holder.
//!
//! A certificate is asked for and never demanded. In the handshake its holder only proves to have
//! the key; whether an authority vouches for it is decided per request ([`Authorities::user`]), as in
//! kube-controller-manager: so a certificate that means nothing here does not keep its holder from
//! showing a token, and new authorities count for connections that are open already.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio_rustls::rustls::{
    self, ALL_VERSIONS, CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore,
    ServerConfig, SignatureScheme, SupportedProtocolVersion,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};

use super::{
    certificates::{OwnCertificate, parse_bundle},
    options::{MinVersion, Options},
    user::User,
};

/// Bytes of a client's certificates, which are kept as long as the connection.
const MAX_CHAIN: usize = 16 * 1024;
/// Certificates of a client: its own, and those between it and an authority. Chains have one or two of the latter;
/// the time it takes to try the ways through them grows with their factorial.
const MAX_CERTIFICATES: usize = 4;

static TLS13_ALONE: [&SupportedProtocolVersion; 1] = [&TLS13];

/// Names of the cipher suites there are, as `--tls-cipher-suites` has them. Go's and the standard's are the same.
pub fn cipher_suites() -> Vec<String> {
    let names = ring::ALL_CIPHER_SUITES.iter().map(|suite| match format!("{:?}", suite.suite()) {
        name if name.starts_with("TLS13_") => name.replacen("TLS13_", "TLS_", 1),
        name => name,
    });
    names.collect()
}

/// How to talk to clients.
///
/// # Errors
/// The flags leave nothing to talk with.
pub fn server_config(options: &Options, own: Arc<OwnCertificate>) -> Result<ServerConfig, rustls::Error> {
    let mut provider = ring::default_provider();
    if !options.cipher_suites.is_empty() {
        let names = cipher_suites();
        let suites = ring::ALL_CIPHER_SUITES.iter().zip(names);
        let chosen = suites.filter(|(suite, name)| {
            // As in Go: those of 1.3 cannot be chosen from.
            suite.tls13().is_some() || options.cipher_suites.contains(name)
        });
        provider.cipher_suites = chosen.map(|(suite, _)| *suite).collect();
    }
    let provider = Arc::new(provider);
    let versions = match options.min_version {
        MinVersion::Tls12 => ALL_VERSIONS,
        MinVersion::Tls13 => TLS13_ALONE.as_slice(),
    };
    let holder = Arc::new(HolderOfKey(Arc::clone(&provider)));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(holder)
        .with_cert_resolver(own);
    // HTTP/2 is off: no client needs it here, and its streams and resets are more to defend.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Nothing is kept of connections that have ended: a stranger decides how large that would be.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Lets every client in that holds the key of the certificate shown, and vouches for none.
#[derive(Debug)]
struct HolderOfKey(Arc<CryptoProvider>);

impl ClientCertVerifier for HolderOfKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // The authorities may change, and are not told to clients.
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let size = own.len() + between.iter().map(|certificate| certificate.len()).sum::<usize>();
        if size > MAX_CHAIN || between.len() >= MAX_CERTIFICATES {
            return Err(CertificateError::BadEncoding.into());
        }
        // Whether it counts is not said yet: see this module's head.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Who may vouch for clients.
#[derive(Debug, Default)]
pub struct Authorities(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    pem: Vec<u8>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    generation: u64,
}

impl Authorities {
    /// Replaces them with those of a PEM file. Returns whether that changes anything.
    ///
    /// # Errors
    /// They cannot be read: those known before stay.
    pub fn replace(&self, pem: &[u8]) -> Result<bool, String> {
        let mut known = self.0.write();
        if known.pem == pem && known.verifier.is_some() {
            return Ok(false);
        }
        let mut roots = RootCertStore::empty();
        for authority in parse_bundle(pem)? {
            roots.add(authority).map_err(|error| error.to_string())?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| error.to_string())?;
        let generation = known.generation.wrapping_add(1);
        *known = Known { pem: pem.to_vec(), verifier: Some(verifier), generation };
        Ok(true)
    }

    /// Forgets them all.
    pub fn clear(&self) {
        let mut known = self.0.write();
        if known.verifier.is_some() {
            *known = Known { generation: known.generation.wrapping_add(1), ..Known::default() };
        }
    }

    /// Changes with the authorities.
    pub fn generation(&self) -> u64 {
        self.0.read().generation
    }

    /// Who shows this chain, if one of the authorities vouches for it now. Takes a millisecond and more.
    pub fn user(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Option<User> {
        let (own, between) = chain.split_first()?;
        let verifier = self.0.read().verifier.clone()?;
        verifier.verify_client_cert(own, between, now).ok()?;
        User::of_certificate(own)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };

    use super::*;
    use crate::options::{CertificateSource, for_tests};

    pub type Authority = CertifiedIssuer<'static, KeyPair>;

    pub fn authority(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    pub fn pem_of(authority: &Authority) -> Vec<u8> {
        let certificate: &rcgen::Certificate = authority.as_ref();
        pem::encode(&pem::Pem::new("CERTIFICATE", certificate.der().to_vec())).into_bytes()
    }

    /// A certificate for clients, with its key.
    pub fn client(
        by: &Authority,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
    ) -> (CertificateDer<'static>, KeyPair) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, by).unwrap().into(), key)
    }

    #[test]
    fn an_authority_vouches_for_clients_and_can_be_replaced() {
        let (ours, theirs) = (authority("ours"), authority("theirs"));
        let authorities = Authorities::default();
        let now = UnixTime::now();
        let (known, _) = client(&ours, "prometheus", ExtendedKeyUsagePurpose::ClientAuth);
        let (foreign, _) = client(&theirs, "prometheus", ExtendedKeyUsagePurpose::ClientAuth);
        let (server, _) = client(&ours, "prometheus", ExtendedKeyUsagePurpose::ServerAuth);
        assert_eq!(authorities.user(std::slice::from_ref(&known), now), None);
        assert!(authorities.replace(&pem_of(&ours)).unwrap());
        assert!(!authorities.replace(&pem_of(&ours)).unwrap());
        assert_eq!(authorities.user(std::slice::from_ref(&known), now).unwrap().username, "prometheus");
        assert_eq!(authorities.user(std::slice::from_ref(&foreign), now), None);
        assert_eq!(authorities.user(&[server], now), None);
        assert_eq!(authorities.user(&[], now), None);
        authorities.replace(b"rubbish").unwrap_err();
        assert!(authorities.user(std::slice::from_ref(&known), now).is_some());
        authorities.replace(&pem_of(&theirs)).unwrap();
        assert_eq!(authorities.user(&[known], now), None);
        assert!(authorities.user(std::slice::from_ref(&foreign), now).is_some());
        authorities.clear();
        assert_eq!(authorities.user(&[foreign], now), None);
    }

    #[test]
    fn versions_and_suites_are_those_that_were_asked_for() {
        let own = || {
            let own = OwnCertificate::load(&CertificateSource::Memory, &["localhost".to_owned()]);
            Arc::new(own.unwrap())
        };
        let suites = cipher_suites();
        assert!(suites.contains(&"TLS_AES_128_GCM_SHA256".to_owned()), "{suites:?}");
        assert!(suites.contains(&"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384".to_owned()), "{suites:?}");
        let one = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256".to_owned();
        let options = Options { cipher_suites: vec![one], ..for_tests() };
        let config = server_config(&options, own()).unwrap();
        let of_12 = config.crypto_provider().cipher_suites.iter().filter(|suite| suite.tls13().is_none());
        assert_eq!(of_12.count(), 1);
        let options = Options { min_version: MinVersion::Tls13, ..for_tests() };
        server_config(&options, own()).unwrap();
    }

    #[test]
    fn what_is_kept_of_a_client_is_bounded() {
        let holder = HolderOfKey(Arc::new(ring::default_provider()));
        let verify = |bytes: usize| {
            let chain: [CertificateDer<'_>; 2] = [vec![0; bytes].into(), vec![0; 1024].into()];
            holder.verify_client_cert(&chain[0], &chain[1..], UnixTime::now())
        };
        verify(15 * 1024).unwrap();
        verify(15 * 1024 + 1).unwrap_err();
        let chain = |length: usize| {
            let chain: Vec<CertificateDer<'_>> = (0..length).map(|_| vec![0; 100].into()).collect();
            holder.verify_client_cert(&chain[0], &chain[1..], UnixTime::now())
        };
        chain(MAX_CERTIFICATES).unwrap();
        chain(MAX_CERTIFICATES + 1).unwrap_err();
    }
}
