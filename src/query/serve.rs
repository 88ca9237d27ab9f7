//! `mooring explain --serve`: the page of the one who asks, over what this one may read.
//!
//! In: a port and a connection. Out: the page's address on stdout, and answers until it is interrupted. Each view is read
//! anew from the API server.

use std::sync::Arc;

use futures::FutureExt;
use tokio::signal::ctrl_c;
use tokio_util::sync::CancellationToken;

use super::{
    connection::Connection,
    output::{QueryStop, UNREACHABLE, USAGE, print, program},
};
use crate::{
    attach_detach::AttachDetachOptions,
    cli::query::ExplainArgs,
    explain::{
        page::{serve::PagePlace, source::PageSource},
        read::Reader,
        report::Verdict,
    },
};

/// Serves until it is interrupted.
pub(super) async fn serve(args: &ExplainArgs, port: u16) -> Result<Verdict, QueryStop> {
    let Connection { reader, namespace, .. } = Connection::new(&args.view.connection).await?;
    let place = PagePlace::take(port).await;
    let place = place.map_err(|error| QueryStop(USAGE, format!("--serve={port}: {error}")))?;
    if !print(&format!("{}\n", place.url())) {
        return Err(QueryStop(UNREACHABLE, "stdout is closed: nobody can read the address".to_owned()));
    }
    let stop = CancellationToken::new();
    let of = args.view.connection.namespace.clone();
    let source = page_source(reader, AttachDetachOptions::default(), namespace, of);
    let serving = place.serve(source, stop.clone());
    let interrupted = async {
        // Without signals it is served until the process ends.
        if ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        stop.cancel();
    };
    tokio::join!(serving, interrupted);
    Ok(Verdict::Healthy)
}

/// Reads with the user's own rights, for a controller that has these flags.
pub fn page_source(
    reader: Reader,
    options: AttachDetachOptions,
    namespace: String,
    of: Option<String>,
) -> PageSource {
    let reader = Arc::new(reader);
    let read = move |question| {
        let reader = Arc::clone(&reader);
        async move {
            let mut snapshot = reader.read(&question).await?;
            snapshot.attach_detach = options;
            Ok(snapshot)
        }
        .boxed()
    };
    PageSource { program: program(), namespace, of, read: Box::new(read) }
}
