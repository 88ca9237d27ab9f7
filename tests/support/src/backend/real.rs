//! etcd, kube-apiserver and the daemon as processes; faults are in a proxy between them.

use std::path::Path;

use futures::future::BoxFuture;
use kube::Client;
use serde_json::json;
use testbed::{
    faults::{Faults, Upstream},
    serve,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use super::{Backend, DEBUG_READER, Destination, EXPLAIN_READER, Proxy, Real};
use crate::{
    audit::{self, Entry},
    cluster::Cluster,
    control_plane::User,
    daemon::{Daemon, Launch},
    history::{Change, History},
    plain_config::plain_config,
};

impl Real {
    fn audit_log(&self) -> impl AsRef<Path> {
        self.plane.audit_log()
    }
}

/// Where a proxy before this kind of server listens.
fn url(proxy: &Proxy) -> &str {
    match &proxy.destination {
        Destination::Http { url, .. } => url,
        Destination::InProcess(_) => panic!("the proxy leads to another server"),
    }
}

impl Backend for Real {
    fn client(&self, user: User) -> Client {
        self.plane.client(user)
    }

    fn proxy(&self) -> BoxFuture<'_, Proxy> {
        Box::pin(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the proxy");
            let address = listener.local_addr().expect("a bound socket has an address");
            let (faults, stop) = (Faults::default(), CancellationToken::new());
            // The daemon brings its own credentials.
            let upstream = faults.layer(Upstream(self.plane.client_with_token(None)));
            tokio::spawn(serve(listener, upstream, stop.clone()));
            let destination =
                Destination::Http { url: format!("http://{address}"), _stop: stop.drop_guard() };
            Proxy { faults, destination }
        })
    }

    fn visitor(&self, name: &'static str, roles: &'static [&'static str]) -> BoxFuture<'_, String> {
        Box::pin(async move {
            let cluster = Cluster::new(self.plane.client(User::Admin));
            let account = json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": "default" },
            });
            cluster.apply(&account.to_string()).await;
            for role in roles {
                match *role {
                    DEBUG_READER => {
                        cluster
                            .apply(include_str!("../../../../deploy/optional/debug-reader/rbac.yaml"))
                            .await;
                    }
                    EXPLAIN_READER => {
                        cluster
                            .apply(include_str!("../../../../deploy/optional/explain-reader/rbac.yaml"))
                            .await;
                    }
                    _ => {}
                }
                let binding = json!({
                    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                    "metadata": { "name": format!("{name}-{role}") },
                    "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                    "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "default" }],
                });
                cluster.apply(&binding.to_string()).await;
            }
            self.plane.service_account_token("default", name).await
        })
    }

    fn start(&self, launch: &Launch, proxy: &Proxy) -> Daemon {
        launch.start_process(self.program, &self.plane.kubeconfig(url(proxy), &self.token))
    }

    fn proxied_client(&self, proxy: &Proxy) -> Client {
        let mut config = plain_config(url(proxy));
        config.auth_info.token = Some(self.plane.token(User::Admin).into());
        Client::try_from(config).expect("build a client")
    }

    fn daemons_client(&self) -> Client {
        self.plane.client_with_token(Some(&self.token))
    }

    fn revision(&self) -> BoxFuture<'_, u64> {
        Box::pin(async { History::of(self.plane.etcd_url()).revision().await })
    }

    fn history(&self, after: u64) -> BoxFuture<'_, Vec<Change>> {
        Box::pin(async move { History::of(self.plane.etcd_url()).since(after).await })
    }

    fn recorded(&self) -> usize {
        audit::length(self.audit_log().as_ref())
    }

    fn requests(&self, from: usize) -> Vec<Entry> {
        audit::read(self.audit_log().as_ref(), from)
    }

    fn real(&self) -> Option<&Real> {
        Some(self)
    }
}
