//! Keys, tokens and certificates of a [`super::control_plane`].

use std::path::Path;

use k8s_openapi::ByteString;
use ring::{
    rand::SystemRandom,
    signature::{self, KeyPair},
};
use sha2::{Digest, Sha256};

/// Header of a P-256 public key in DER (RFC 5480); the point follows.
const P256_PUBLIC_KEY: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Writes a new key pair for ServiceAccount tokens, and returns the private one: it is also the
/// secret that the users' tokens are made from.
pub(super) fn write_service_account_keys(folder: &Path) -> Vec<u8> {
    let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    let random = SystemRandom::new();
    let private = signature::EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("generate a key");
    let pair =
        signature::EcdsaKeyPair::from_pkcs8(algorithm, private.as_ref(), &random).expect("read the key");
    let public = [P256_PUBLIC_KEY.as_slice(), pair.public_key().as_ref()].concat();
    std::fs::write(folder.join("service-account.key"), pem("PRIVATE KEY", private.as_ref())).unwrap();
    std::fs::write(folder.join("service-account.pub"), pem("PUBLIC KEY", &public)).unwrap();
    private.as_ref().to_vec()
}

fn pem(label: &str, der: &[u8]) -> String {
    let base64 = serde_json::to_value(ByteString(der.to_vec())).unwrap();
    let text = base64.as_str().expect("bytes are written as base64");
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// What a user shows as token.
pub(super) fn token(secret: &[u8], user: &str) -> String {
    let hash = Sha256::new().chain_update(secret).chain_update(user).finalize();
    format!("{hash:x}")
}

/// The DER certificates of a PEM file; none while it is still being written.
pub(super) fn certificates(pem: &str) -> Vec<Vec<u8>> {
    let mut certificates = Vec::new();
    for part in pem.split("-----BEGIN CERTIFICATE-----").skip(1) {
        let Some((base64, _)) = part.split_once("-----END CERTIFICATE-----") else { return Vec::new() };
        let text: String = base64.split_whitespace().collect();
        let Ok(ByteString(der)) = serde_json::from_value(text.into()) else { return Vec::new() };
        certificates.push(der);
    }
    certificates
}
