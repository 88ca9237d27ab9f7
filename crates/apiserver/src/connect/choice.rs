//! Which API server, and as whom, in kubectl's words.
//!
//! In: kubectl's flags for connections. Out: an [`ApiServer`], found in kubectl's order: the file of the flag, else
//! `$KUBECONFIG`, else `~/.kube/config` if it is there, else the pod's service account. The daemon itself looks for its
//! service account first ([`ApiServer::find`]): it is not asked by a person.
//!
//! Credentials go to a server whose certificate is verified, or to this machine: to another only if the kubeconfig says
//! that the certificate is not to be verified, which then kubectl does, too.

use std::{env, path::PathBuf};

use clap::Args;
use kube::{
    Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde_json::json;

use super::{
    ApiServer, Authority, ConnectError, config_of, in_cluster, proxy::is_this_machine, refused, unreadable,
    unusable, uri,
};

/// kubectl's flags for connections; what is not given is as the kubeconfig says.
#[derive(Clone, derive_more::Debug, Default, PartialEq, Eq, Args)]
pub struct Choice {
    /// Kubeconfig file [default: $KUBECONFIG, else ~/.kube/config, else the pod's service account].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// Cluster of the kubeconfig [default: the context's].
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,

    /// User of the kubeconfig [default: the context's].
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Address of the API server.
    #[arg(long, short, value_name = "URL")]
    pub server: Option<String>,

    /// Certificate authority of the API server, as PEM, in place of the cluster's.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,

    /// Name in the API server's certificate [default: the server's].
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,

    /// Bearer token, in place of the user's credentials.
    #[arg(long, value_name = "TOKEN", hide_default_value = true)]
    #[debug(skip)]
    pub token: Option<String>,

    /// Client certificate, as PEM, in place of the user's.
    #[arg(long, value_name = "FILE")]
    pub client_certificate: Option<PathBuf>,

    /// Key of the client certificate, as PEM.
    #[arg(long, value_name = "FILE")]
    pub client_key: Option<PathBuf>,

    /// User to impersonate.
    #[arg(long = "as", value_name = "USER")]
    pub impersonated: Option<String>,

    /// UID to impersonate, with --as.
    #[arg(long = "as-uid", value_name = "UID")]
    pub impersonated_uid: Option<String>,

    /// Group to impersonate; may be given more than once.
    #[arg(long = "as-group", value_name = "GROUP", action = clap::ArgAction::Append)]
    pub impersonated_groups: Vec<String>,

    /// More about the user to impersonate, as KEY=VALUE; may be given more than once.
    #[arg(long = "as-user-extra", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub impersonated_extra: Vec<(String, String)>,

    /// Do not verify the API server's certificate. Refused unless the kubeconfig sets the same for its cluster.
    #[arg(long = "insecure-skip-tls-verify")]
    pub skips_verification: bool,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it has to be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl ApiServer {
    /// Finds the configuration in kubectl's order and applies the flags to it.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn choose(choice: &Choice) -> Result<Self, ConnectError> {
        let variable = env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
        let default = env::home_dir().map(|home| home.join(".kube/config"));
        let origin = match (&choice.kubeconfig, &variable) {
            (Some(file), _) => format!("--kubeconfig {}", file.display()),
            (None, Some(value)) => format!("KUBECONFIG={}", value.display()),
            (None, None) if default.as_ref().is_none_or(|file| !file.is_file()) => {
                return choice.without_kubeconfig();
            }
            (None, None) => "~/.kube/config".to_owned(),
        };
        let chosen = |error| unreadable(&origin, &error);
        let content = choice.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
        let content = content.map_err(chosen)?;
        choice.check(&content, &origin)?;
        let options = KubeConfigOptions {
            context: choice.context.clone(),
            cluster: choice.cluster.clone(),
            user: choice.user.clone(),
        };
        let config = config_of(content, &options).await;
        let mut config = config.map_err(chosen)?;
        choice.apply(&mut config)?;
        Self::over_network(config, origin, None).prepared().await
    }

    /// The namespace of the context, or of the service account.
    pub fn default_namespace(&self) -> &str {
        match &self.connection {
            super::Connection::Network(config) => &config.default_namespace,
            super::Connection::InProcess(client) => client.default_namespace(),
        }
    }
}

impl Choice {
    /// No file: the service account, or nothing but a server that a flag names.
    fn without_kubeconfig(&self) -> Result<ApiServer, ConnectError> {
        let named = [("--context", &self.context), ("--cluster", &self.cluster), ("--user", &self.user)];
        if let Some((flag, _)) = named.into_iter().find(|(_, name)| name.is_some()) {
            return Err(refused(flag, "there is no kubeconfig to find it in"));
        }
        let (mut config, origin) = match (&self.server, env::var_os("KUBERNETES_SERVICE_HOST")) {
            (None, Some(_)) => (in_cluster()?, "in-cluster configuration".to_owned()),
            (Some(server), _) => (Config::new(uri(server)?), format!("--server {server}")),
            (None, None) => {
                let not_here = "no --kubeconfig, not in a cluster (KUBERNETES_SERVICE_HOST is not set), and \
                                ~/.kube/config cannot be used";
                return Err(unusable(not_here, &KubeconfigError::FindPath));
            }
        };
        self.apply(&mut config)?;
        let namespace = config.default_namespace.clone();
        Ok(ApiServer::over_network(config, origin, Some(namespace)))
    }

    /// kube takes a user that is not there for one without credentials; kubectl refuses it.
    fn check(&self, content: &Kubeconfig, origin: &str) -> Result<(), ConnectError> {
        let Some(user) = &self.user else { return Ok(()) };
        if content.auth_infos.iter().any(|named| named.name == *user) {
            return Ok(());
        }
        Err(refused("--user", &format!("{origin} has no user {user:?}")))
    }

    /// Puts the flags over a configuration.
    fn apply(&self, config: &mut Config) -> Result<(), ConnectError> {
        if let Some(server) = &self.server {
            config.cluster_url = uri(server)?;
        }
        self.apply_authority(config)?;
        if let Some(token) = &self.token {
            let only_token = serde_json::from_value(json!({ "token": token })).unwrap_or_default();
            let user = std::mem::replace(&mut config.auth_info, only_token);
            config.auth_info = AuthInfo {
                impersonate: user.impersonate,
                impersonate_uid: user.impersonate_uid,
                impersonate_groups: user.impersonate_groups,
                impersonate_user_extra: user.impersonate_user_extra,
                ..std::mem::take(&mut config.auth_info)
            };
        }
        self.apply_certificate(&mut config.auth_info)?;
        self.apply_impersonation(&mut config.auth_info)?;
        if self.skips_verification && !config.accept_invalid_certs {
            let why = "is taken from the kubeconfig alone: your credentials would go to any server that \
                       answers. If that \
                       is meant, write insecure-skip-tls-verify into its cluster";
            return Err(refused("--insecure-skip-tls-verify", why));
        }
        let is_plain = config.cluster_url.scheme_str() != Some("https");
        if self.server.is_some() && is_plain && !is_this_machine(config) {
            return Err(refused(
                "--server",
                "your credentials would go over the network in plain text: use https",
            ));
        }
        Ok(())
    }

    /// Who vouches for the server. As with kubectl, the name that the kubeconfig expects is that of its own server.
    fn apply_authority(&self, config: &mut Config) -> Result<(), ConnectError> {
        if self.server.is_some() || self.tls_server_name.is_some() {
            config.tls_server_name.clone_from(&self.tls_server_name);
        }
        if let Some(file) = &self.certificate_authority {
            Authority::of_file("--certificate-authority", file)?.alone(config);
        }
        Ok(())
    }

    fn apply_certificate(&self, user: &mut AuthInfo) -> Result<(), ConnectError> {
        let name = |file: &Option<PathBuf>| Some(file.as_ref()?.to_string_lossy().into_owned());
        if let Some(file) = name(&self.client_certificate) {
            (user.client_certificate, user.client_certificate_data) = (Some(file), None);
        }
        if let Some(file) = name(&self.client_key) {
            (user.client_key, user.client_key_data) = (Some(file), None);
        }
        let has_certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
        let has_key = user.client_key.is_some() || user.client_key_data.is_some();
        if self.client_certificate.is_some() && !has_key {
            return Err(refused("--client-certificate", "needs --client-key"));
        }
        if self.client_key.is_some() && !has_certificate {
            return Err(refused("--client-key", "needs --client-certificate"));
        }
        Ok(())
    }

    fn apply_impersonation(&self, user: &mut AuthInfo) -> Result<(), ConnectError> {
        if let Some(name) = &self.impersonated {
            user.impersonate = Some(name.clone());
        }
        if let Some(uid) = &self.impersonated_uid {
            user.impersonate_uid = Some(uid.clone());
        }
        if !self.impersonated_groups.is_empty() {
            user.impersonate_groups = Some(self.impersonated_groups.clone());
        }
        for (key, value) in &self.impersonated_extra {
            let extra = user.impersonate_user_extra.get_or_insert_default();
            extra.entry(key.clone()).or_default().push(value.clone());
        }
        let needs_a_name = [
            ("--as-group", user.impersonate_groups.is_some()),
            ("--as-uid", user.impersonate_uid.is_some()),
            ("--as-user-extra", user.impersonate_user_extra.is_some()),
        ];
        match needs_a_name.into_iter().find(|(_, is_given)| *is_given && user.impersonate.is_none()) {
            Some((flag, _)) => Err(refused(flag, "needs --as")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::connect::Connection;

    const TWO_CONTEXTS: &str = "{apiVersion: v1, kind: Config, current-context: x,
        clusters: [{name: c, cluster: {server: 'https://one:6443'}},
                   {name: d, cluster: {server: 'https://two:6443', insecure-skip-tls-verify: true, tls-server-name: two.example}}],
        users: [{name: u, user: {token: ut}},
                {name: w, user: {client-certificate-data: d2M=, client-key-data: d2s=}},
                {name: v, user: {username: vn, password: vp, as: deputy}}],
        contexts: [{name: x, context: {cluster: c, user: u}},
                   {name: y, context: {cluster: d, user: v, namespace: shop}}]}";

    /// What becomes of a choice: the configuration, or the line that refuses it.
    async fn chosen(name: &str, choice: Choice) -> Result<Config, String> {
        let file = env::temp_dir().join(format!("mooring-choice-{name}-{}", std::process::id()));
        fs::write(&file, TWO_CONTEXTS).unwrap();
        let api = ApiServer::choose(&Choice { kubeconfig: Some(file.clone()), ..choice }).await;
        fs::remove_file(&file).unwrap();
        let api = api.map_err(|error| error.to_string())?;
        let Connection::Network(config) = api.connection else { panic!("in process") };
        Ok(*config)
    }

    #[expect(clippy::unnecessary_wraps, reason = "short for each field of a choice")]
    fn is(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[tokio::test]
    async fn context_cluster_user_and_server_are_chosen_as_by_kubectl() {
        let host = |config: &Config| config.cluster_url.host().unwrap_or_default().to_owned();
        let plain = chosen("plain", Choice::default()).await.unwrap();
        assert_eq!((host(&plain).as_str(), plain.default_namespace.as_str()), ("one", "default"));

        let other = chosen("context", Choice { context: is("y"), ..Choice::default() }).await.unwrap();
        assert_eq!((host(&other).as_str(), other.default_namespace.as_str()), ("two", "shop"));
        assert_eq!(other.auth_info.impersonate, is("deputy"));
        assert!(other.accept_invalid_certs);

        let choice = Choice { cluster: is("d"), user: is("v"), ..Choice::default() };
        let mixed = chosen("mixed", choice).await.unwrap();
        assert_eq!((host(&mixed), mixed.auth_info.username), ("two".to_owned(), is("vn")));

        let choice = Choice { server: is("three:6443"), ..Choice::default() };
        let elsewhere = chosen("server", choice).await.unwrap();
        assert_eq!(elsewhere.cluster_url.to_string(), "https://three:6443/");
    }

    #[tokio::test]
    async fn a_token_takes_the_place_of_all_other_credentials() {
        let choice = Choice {
            context: is("y"),
            token: is("t"),
            impersonated: is("alice"),
            impersonated_uid: is("7"),
            impersonated_groups: vec!["dev".to_owned()],
            impersonated_extra: ["a", "b"].map(|value| ("scopes".to_owned(), value.to_owned())).to_vec(),
            ..Choice::default()
        };
        assert!(!format!("{choice:?}").contains("\"t\""));
        let user = chosen("token", choice).await.unwrap().auth_info;
        assert!(user.token.is_some() && user.username.is_none() && user.password.is_none());
        assert_eq!((user.impersonate, user.impersonate_uid), (is("alice"), is("7")));
        assert_eq!(user.impersonate_groups, Some(vec!["dev".to_owned()]));
        assert_eq!(user.impersonate_user_extra.unwrap()["scopes"], ["a", "b"]);
    }

    /// A certificate authority in a file of its own, and what is in it.
    fn authority(folder: &tempfile::TempDir) -> (PathBuf, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(["one".to_owned()]).unwrap();
        let (file, content) = (folder.path().join("ca.crt"), made.cert.der().to_vec());
        fs::write(&file, pem::encode(&pem::Pem::new("CERTIFICATE", content.clone()))).unwrap();
        (file, content)
    }

    #[tokio::test]
    async fn who_vouches_for_the_server_is_chosen_as_by_kubectl() {
        let folder = tempfile::tempdir().unwrap();
        let (file, content) = authority(&folder);
        // what is chosen; the name that the certificate has to be for, who vouches for it, and whether it is verified
        let cases = [
            ("context y", Choice { context: is("y"), ..Choice::default() }, (is("two.example"), None, false)),
            (
                "an authority",
                Choice { context: is("y"), certificate_authority: Some(file), ..Choice::default() },
                (is("two.example"), Some(vec![content]), true),
            ),
            (
                "a name",
                Choice { context: is("y"), tls_server_name: is("other"), ..Choice::default() },
                (is("other"), None, false),
            ),
            (
                "another server",
                Choice { context: is("y"), server: is("three"), ..Choice::default() },
                (None, None, false),
            ),
        ];
        for (name, choice, expected) in cases {
            let config = chosen(name, choice).await.unwrap();
            let seen = (config.tls_server_name, config.root_cert, !config.accept_invalid_certs);
            assert_eq!(seen, expected, "{name}");
        }
    }

    #[tokio::test]
    async fn a_client_certificate_takes_the_place_of_the_users() {
        let file = |name: &str| Some(PathBuf::from(name));
        let certificate = |certificate, key| Choice {
            client_certificate: certificate,
            client_key: key,
            ..Choice::default()
        };
        let key_alone = || certificate(None, file("new.key"));
        // what is chosen; certificate and key as files, and whether those of the kubeconfig are left
        let cases = [
            (
                "both",
                certificate(file("new.crt"), file("new.key")),
                (is("new.crt"), is("new.key"), false, false),
            ),
            ("w", Choice { user: is("w"), ..key_alone() }, (None, is("new.key"), true, false)),
            (
                "w's",
                Choice { user: is("w"), ..certificate(file("new.crt"), None) },
                (is("new.crt"), None, false, true),
            ),
        ];
        for (name, choice, expected) in cases {
            let user = chosen(name, choice).await.unwrap().auth_info;
            let left = (user.client_certificate_data.is_some(), user.client_key_data.is_some());
            assert_eq!((user.client_certificate, user.client_key, left.0, left.1), expected, "{name}");
        }
        let choice = Choice { token: is("t"), ..certificate(file("new.crt"), file("new.key")) };
        let user = chosen("token-and-certificate", choice).await.unwrap().auth_info;
        assert_eq!((user.token.is_some(), user.client_certificate), (true, is("new.crt")));
    }

    #[tokio::test]
    async fn what_would_give_credentials_away_is_refused_in_a_sentence() {
        let refusals = [
            (
                "skip",
                Choice { skips_verification: true, ..Choice::default() },
                "--insecure-skip-tls-verify: is taken",
            ),
            (
                "http",
                Choice { server: is("http://three"), ..Choice::default() },
                "--server: your credentials would",
            ),
            (
                "ftp",
                Choice { server: is("ftp://three"), ..Choice::default() },
                "--server: \"ftp://three\" is no",
            ),
            ("user", Choice { user: is("nobody"), ..Choice::default() }, "--user: --kubeconfig "),
            (
                "group",
                Choice { impersonated_groups: vec!["dev".to_owned()], ..Choice::default() },
                "--as-group: needs --as",
            ),
            (
                "extra",
                Choice { impersonated_extra: vec![("k".to_owned(), "v".to_owned())], ..Choice::default() },
                "--as-user-extra: needs --as",
            ),
            ("uid", Choice { impersonated_uid: is("7"), ..Choice::default() }, "--as-uid: needs --as"),
            (
                "authority",
                Choice { certificate_authority: Some("/nowhere/ca".into()), ..Choice::default() },
                "--certificate-authority: /nowhere/ca: No such file",
            ),
            (
                "certificate",
                Choice { client_certificate: Some("c".into()), ..Choice::default() },
                "--client-certificate: needs --client-key",
            ),
            (
                "key",
                Choice { client_key: Some("k".into()), ..Choice::default() },
                "--client-key: needs --client-certificate",
            ),
            ("none", Choice { context: is("z"), ..Choice::default() }, "--kubeconfig "),
        ];
        for (name, choice, expected) in refusals {
            let line = chosen(name, choice).await.unwrap_err();
            assert!(line.starts_with(expected) && !line.contains('\n'), "{name}: {line}");
        }
        // The kubeconfig has said it before.
        let choice = Choice { context: is("y"), skips_verification: true, ..Choice::default() };
        assert!(chosen("agreed", choice).await.is_ok());
        let choice = Choice { server: is("http://127.0.0.1:8001"), ..Choice::default() };
        assert!(chosen("proxy", choice).await.is_ok());
    }
}
