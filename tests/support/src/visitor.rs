//! Clients of the daemon's port: an authority of client certificates, created once per test process, the
//! certificates that it signs, and requests with or without them.

use std::{path::PathBuf, sync::OnceLock};

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, Config, client::Body};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};

use super::{plain_config::plain_config, process::temporary_folder};

/// The authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

fn pem(tag: &str, der: &[u8]) -> String {
    pem::encode(&pem::Pem::new(tag, der))
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

impl Authority {
    /// The one of this process.
    pub fn of_the_test() -> &'static Self {
        static MADE: OnceLock<Authority> = OnceLock::new();
        MADE.get_or_init(Self::another)
    }

    /// One that nobody knows.
    pub fn another() -> Self {
        let params = authority("test authority");
        Self::write_authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// One that this one vouches for.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        Self::write_authority(CertifiedIssuer::signed_by(authority(name), key, &self.issuer).unwrap())
    }

    fn write_authority(issuer: CertifiedIssuer<'static, KeyPair>) -> Self {
        let folder = temporary_folder("authority");
        let certificate: &rcgen::Certificate = issuer.as_ref();
        std::fs::write(folder.join("ca.crt"), pem("CERTIFICATE", certificate.der())).unwrap();
        Self { issuer, folder }
    }

    /// Its own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// A certificate for a user.
    pub fn vouch(&self, name: &str, groups: &[&str]) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.write(name, &params)
    }

    fn write(&self, name: &str, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let [certificate_file, key_file] =
            ["crt", "key"].map(|kind| self.folder.join(format!("{name}.{kind}")));
        std::fs::write(&certificate_file, pem("CERTIFICATE", certificate.der())).unwrap();
        std::fs::write(&key_file, pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        Identity { certificate: certificate_file, key: key_file }
    }

    /// A certificate for a server on this machine.
    pub fn vouch_for_server(&self) -> Identity {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.write("server", &params)
    }

    /// Somebody who may read everything, and about whom nobody has to be asked.
    pub fn master() -> Identity {
        static MADE: OnceLock<Identity> = OnceLock::new();
        MADE.get_or_init(|| Self::of_the_test().vouch("master", &["system:masters"])).clone()
    }
}

/// What a visitor shows.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub identity: Option<Identity>,
    pub token: Option<String>,
}

impl From<Identity> for Credentials {
    fn from(identity: Identity) -> Self {
        Self { identity: Some(identity), token: None }
    }
}

impl Credentials {
    /// Of a bearer.
    pub fn token(token: impl Into<String>) -> Self {
        Self { identity: None, token: Some(token.into()) }
    }

    /// A client of the daemon at a URL. The daemon's own certificate is made at start, so nobody knows it.
    pub fn client(&self, url: &str) -> Client {
        let mut config: Config = plain_config(url);
        config.accept_invalid_certs = true;
        if let Some(Identity { certificate, key }) = &self.identity {
            config.auth_info.client_certificate = Some(certificate.display().to_string());
            config.auth_info.client_key = Some(key.display().to_string());
        }
        config.auth_info.token = self.token.clone().map(Into::into);
        Client::try_from(config).expect("build a client")
    }
}

/// Asks for a page; `None` if nothing is answered at all.
pub async fn ask(client: &Client, path: &str) -> Option<(StatusCode, String)> {
    let answer = client.send(Request::get(path).body(Body::empty()).unwrap()).await.ok()?;
    let status = answer.status();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}
