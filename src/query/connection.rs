//! With whom one talks, and in which namespace.

use apiserver::connect::ApiServer;

use super::output::{QueryStop, unreachable};
use crate::{cli::query::ConnectionArgs, explain::read::Reader};

/// A reader of one API server.
pub(super) struct Connection {
    pub api: ApiServer,
    pub reader: Reader,
    pub namespace: String,
}

impl Connection {
    pub(super) async fn new(args: &ConnectionArgs) -> Result<Self, QueryStop> {
        let api = ApiServer::choose(&args.choice).await?;
        let namespace = args.namespace.as_deref().unwrap_or_else(|| api.default_namespace()).to_owned();
        let reader = Reader::new(&api, args.patience()).map_err(unreachable)?;
        Ok(Self { api, reader, namespace })
    }
}
