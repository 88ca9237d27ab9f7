//! The daemon's token: a file that is replaced, and a Secret without which the token is good for nothing.

use std::path::{Path, PathBuf};

use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use test_support::{
    cluster::{Cluster, create},
    process::temporary_folder,
};

/// The token of a ServiceAccount, and what it is bound to.
#[derive(Debug)]
pub struct TokenFile {
    namespace: &'static str,
    account: &'static str,
    file: PathBuf,
    /// The Secrets of the former token and of that of now.
    former: Option<String>,
    now: Option<String>,
    count: usize,
}

impl TokenFile {
    pub async fn write(cluster: &Cluster, namespace: &'static str, account: &'static str) -> Self {
        let file = temporary_folder("token").join("token");
        let mut token = Self { namespace, account, file, former: None, now: None, count: 0 };
        token.renew(cluster).await;
        token
    }

    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Puts another token in its place.
    pub async fn renew(&mut self, cluster: &Cluster) {
        self.count += 1;
        let secrets = self.secrets(cluster);
        let name = format!("token-{}", self.count);
        let secret = create(&secrets, json!({ "metadata": { "name": name } })).await;
        let bound = json!({ "apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret.uid() });
        let spec = json!({ "audiences": [], "expirationSeconds": 86_400, "boundObjectRef": bound });
        let request: TokenRequest = serde_json::from_value(json!({ "spec": spec })).expect("a request");
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), self.namespace);
        let answer = accounts.create_token_request(self.account, &PostParams::default(), &request).await;
        let token =
            answer.expect("request a token").status.expect("a token request is answered in its status");
        let written = self.file.with_extension("new");
        std::fs::write(&written, token.token).expect("write a token");
        std::fs::rename(&written, &self.file).expect("replace a token");
        self.former = self.now.replace(name);
    }

    /// Takes the former one out of service: an API server believes it for ten more seconds.
    pub async fn forget_former(&mut self, cluster: &Cluster) {
        if let Some(former) = self.former.take() {
            let deleted = self.secrets(cluster).delete(&former, &DeleteParams::default()).await;
            deleted.expect("delete a token's Secret");
        }
    }

    fn secrets(&self, cluster: &Cluster) -> Api<Secret> {
        Api::namespaced(cluster.client.clone(), self.namespace)
    }
}
