//! Who asks: a user as the API server's reviews describe one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_cert::{
    Certificate,
    der::{
        Decode,
        asn1::{ObjectIdentifier, PrintableStringRef, Utf8StringRef},
    },
};

/// X.520 commonName.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// X.520 organizationName.
const ORGANIZATION: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.10");
/// Its members may do everything, as everywhere in Kubernetes.
const MASTERS: &str = "system:masters";
/// Everybody who has shown who they are.
const AUTHENTICATED: &str = "system:authenticated";

/// A user (`authentication.k8s.io/v1` UserInfo).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct User {
    /// Name.
    #[serde(rename(serialize = "user"))]
    pub username: String,
    /// UID.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// What an authenticator adds.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user that a client certificate names: common name and organizations.
    // apiserver: pkg/authentication/request/x509/x509.go, CommonNameUserConversion.
    #[must_use]
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let mut user = Self::default();
        for attribute in certificate.tbs_certificate().subject().iter() {
            let text = attribute.value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
            let text = text.or_else(|_| {
                attribute.value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned())
            });
            match (attribute.oid, text) {
                (COMMON_NAME, Ok(name)) => user.username = name,
                (ORGANIZATION, Ok(group)) => user.groups.push(group),
                _ => {}
            }
        }
        if user.username.is_empty() {
            return None;
        }
        user.groups.push(AUTHENTICATED.to_owned());
        Some(user)
    }

    /// Whether nothing has to be asked about it.
    // apiserver: pkg/server/options/authorization.go, AlwaysAllowGroups.
    #[must_use]
    pub fn may_everything(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, &str)]) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, text) in names {
            params.distinguished_name.push(kind.clone(), *text);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    #[test]
    fn a_certificate_names_a_user_and_groups() {
        let user = User::of_certificate(&certificate(&[
            (DnType::OrganizationName, "monitoring"),
            (DnType::OrganizationalUnitName, "no group"),
            (DnType::CommonName, "prometheus"),
        ]));
        let user = user.unwrap();
        assert_eq!(user.username, "prometheus");
        assert_eq!(user.groups, ["monitoring", "system:authenticated"]);
        assert!(!user.may_everything());
        let nobody = certificate(&[(DnType::OrganizationName, "system:masters")]);
        assert_eq!(User::of_certificate(&nobody), None);
        assert_eq!(User::of_certificate(&vec![1, 2, 3].into()), None);
        let master = certificate(&[(DnType::CommonName, "a"), (DnType::OrganizationName, "system:masters")]);
        assert!(User::of_certificate(&master).unwrap().may_everything());
    }
}
