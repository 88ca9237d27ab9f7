//! With whom one talks, and in which namespace.

use apiserver::connect::ApiServer;

use super::output::QueryStop;
use crate::{
    cli::query::ConnectionArgs,
    explain::read::{Question, Reader, Reading},
    terminal::complain,
};

/// A reader of one API server. What is worth a line about the server is told once.
pub(super) struct Connection {
    pub api: ApiServer,
    pub reader: Reader,
    pub namespace: String,
    has_noted: bool,
}

impl Connection {
    pub(super) async fn new(args: &ConnectionArgs) -> Result<Self, QueryStop> {
        let api = ApiServer::choose(&args.choice).await?;
        let namespace = args.namespace.as_deref().unwrap_or_else(|| api.default_namespace()).to_owned();
        let reader = Reader::new(&api, args.patience())?;
        Ok(Self { api, reader, namespace, has_noted: false })
    }

    /// What an answer needs.
    pub(super) async fn read(&mut self, question: &Question) -> Result<Reading, QueryStop> {
        let reading = self.reader.read(question).await?;
        if let Some(note) = reading.note.as_ref().filter(|_| !self.has_noted) {
            complain(note);
            self.has_noted = true;
        }
        Ok(reading)
    }
}
