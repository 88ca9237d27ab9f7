//! Who asks: a user as the API server's reviews describe one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
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
/// Kubernetes' attribute for the UID of a user.
// apimachinery: pkg/apis/asn1/oid.go, X509UID.
const USER_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.57683.2");
/// Which credential a user has shown, among what an authenticator adds.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Who has shown nothing.
const ANONYMOUS: &str = "system:anonymous";
/// The group of those.
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Its members may do everything, as everywhere in Kubernetes.
const MASTERS: &str = "system:masters";
/// Every user who has shown who they are.
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
    /// The user that a client certificate names: common name, organizations, UID and fingerprint.
    // apiserver: pkg/authentication/request/x509/x509.go, CommonNameUserConversion.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let fingerprint = format!("X509SHA256={:x}", Sha256::digest(certificate));
        let certificate = Certificate::from_der(certificate).ok()?;
        let mut user = Self::default();
        let mut uids = Vec::new();
        for attribute in certificate.tbs_certificate().subject().iter() {
            let text = attribute.value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
            let text = text.or_else(|_| {
                attribute.value.decode_as::<PrintableStringRef<'_>>().map(|text| text.as_str().to_owned())
            });
            match (attribute.oid, text) {
                (COMMON_NAME, Ok(name)) => user.username = name,
                (ORGANIZATION, Ok(group)) => user.groups.push(group),
                (USER_ID, uid) => uids.push(uid.ok()?),
                _ => {}
            }
        }
        if user.username.is_empty() {
            return None;
        }
        match uids.as_slice() {
            [] => {}
            [uid] if !uid.is_empty() => uid.clone_into(&mut user.uid),
            _ => return None,
        }
        user.extra.insert(CREDENTIAL_ID.to_owned(), vec![fingerprint]);
        Some(user.authenticated())
    }

    /// The same, as a member of the group of all who have shown who they are.
    // apiserver: pkg/authentication/group/authenticated_group_adder.go.
    pub fn authenticated(mut self) -> Self {
        let is_told = self.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
        if self.username != ANONYMOUS && !is_told {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// Whether nothing has to be asked about it.
    // apiserver: pkg/server/options/authorization.go, AlwaysAllowGroups.
    pub(crate) fn may_everything(&self) -> bool {
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
        let id = &user.extra["authentication.kubernetes.io/credential-id"];
        assert!(id.len() == 1 && id[0].len() == "X509SHA256=".len() + 64, "{id:?}");
        assert!(id[0].starts_with("X509SHA256=") && user.uid.is_empty());
        assert!(!user.may_everything());
        let uid = || DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let named = |uids: &[&str]| {
            let mut names = vec![(DnType::CommonName, "a")];
            names.extend(uids.iter().map(|value| (uid(), *value)));
            User::of_certificate(&certificate(&names))
        };
        assert_eq!(named(&["7"]).unwrap().uid, "7");
        assert_eq!(named(&[""]), None);
        let nobody = certificate(&[(DnType::OrganizationName, "system:masters")]);
        assert_eq!(User::of_certificate(&nobody), None);
        assert_eq!(User::of_certificate(&vec![1, 2, 3].into()), None);
        let master = certificate(&[(DnType::CommonName, "a"), (DnType::OrganizationName, "system:masters")]);
        assert!(User::of_certificate(&master).unwrap().may_everything());
    }

    #[test]
    fn whoever_is_known_is_in_the_group_of_all_who_are() {
        let groups = |username: &str, groups: &[&str]| {
            let groups = groups.iter().map(|&group| group.to_owned()).collect();
            User { username: username.to_owned(), groups, ..User::default() }.authenticated().groups
        };
        assert_eq!(groups("a", &["g"]), ["g", "system:authenticated"]);
        assert_eq!(groups("a", &["system:authenticated", "g"]), ["system:authenticated", "g"]);
        assert_eq!(groups("a", &["system:unauthenticated"]), ["system:unauthenticated"]);
        assert!(groups("system:anonymous", &[]).is_empty());
    }
}
