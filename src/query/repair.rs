//! `mooring repair`: says what would be sent, and sends it if it was told to.
//!
//! In: its arguments. Out: the proof, the exact requests, and with `--yes` what became of each. A request names the UID and
//! revision that it was decided on, so that it does nothing to what has changed since; the first that is not accepted
//! ends it.

use std::time::Duration;

use apiserver::kinds::ObjectRef;
use http::Method;
use kube::Client;

use super::{
    connection::Connection,
    output::{QueryStop, UNREACHABLE, USAGE, print, printed, program, unreachable},
};
use crate::{
    cli::query::{OutputForm, questions::RepairArgs},
    explain::{
        read::Question,
        repair::{Advice, Repair, RepairWrite, repair},
        report::Verdict,
        sheet::clean,
        subject,
    },
    fence::ask::{NoAnswer, answer, request},
    terminal::complain,
};

/// How long an answer to a write may take, unless the user says otherwise: as long as the server itself takes at most.
const REPAIR_PATIENCE: Duration = Duration::from_mins(1);

/// `mooring repair`, to its end.
///
/// # Errors
/// There is no answer, or a request was not accepted.
pub async fn run(args: &RepairArgs) -> Result<Verdict, QueryStop> {
    let usage = |line| QueryStop(USAGE, line);
    // Before a server is looked for: the words may be wrong without one.
    args.asked("").map_err(usage)?;
    let connection = Connection::new(&args.view.connection).await?;
    let what = args.asked(&connection.namespace).map_err(usage)?;
    let snapshot = connection.reader.read(&Question::Repair(what.clone())).await.map_err(unreachable)?;
    let advice: Advice = repair(&snapshot, &what);
    let is_for_people = matches!(args.view.output, OutputForm::Text | OutputForm::Wide);
    let is_printed = print(&printed(&advice, &args.view)?);
    if advice.requests.is_empty() {
        return Ok(advice.verdict);
    }
    if !args.yes {
        if is_for_people {
            print("Nothing was sent. The same command with --yes sends it.\n");
        }
        return Ok(advice.verdict);
    }
    if !is_printed {
        // What no one could see is not sent.
        return Err(QueryStop(UNREACHABLE, "stdout is closed: nothing was sent".to_owned()));
    }
    let client = connection.api.client()?;
    let patience = args.view.connection.patience().unwrap_or(REPAIR_PATIENCE);
    for (sent, write) in advice.requests.iter().enumerate() {
        if let Err(QueryStop(code, why)) = send(&client, write, patience).await {
            let before = if sent == 0 { "nothing before it".to_owned() } else { format!("{sent} before it") };
            let line = format!("{} {}: {} ({before} was carried out)", write.method, write.path, clean(&why));
            return Err(QueryStop(code, line));
        }
        complain(&format!("accepted: {} {}", write.method, write.path));
    }
    let subject = match what {
        Repair::Relink(claim, _) => ObjectRef::Claim(claim),
        Repair::Free(volume) => ObjectRef::Volume(volume),
        Repair::Unstick(name) => ObjectRef::Attachment(name),
    };
    let namespace = subject.names().0.map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    let next = format!("{} explain {}{namespace}", program(), subject::typed(&subject));
    if is_for_people {
        print(&format!("SENT  see what comes of it:\n{next}\n"));
    }
    Ok(Verdict::Healthy)
}

/// Sends one request. What the server refuses was not carried out.
async fn send(client: &Client, write: &RepairWrite, patience: Duration) -> Result<(), QueryStop> {
    let path = format!("{}?fieldManager=mooring-repair", write.path);
    let sent = async { answer(client, request(Method::PATCH, &path, Some(&write.body))?, patience).await };
    match sent.await {
        Ok(_) => Ok(()),
        Err(NoAnswer::Unknown(why)) => {
            let told = "whether it was carried out is not known; ask again before you repeat it";
            Err(QueryStop(UNREACHABLE, format!("{why}: {told}")))
        }
        Err(NoAnswer::Refused(code, said)) => Err(match code {
            409 => QueryStop(
                Verdict::Blocked.exit_code(),
                format!("it has changed since it was read, and stays as it is: {said}"),
            ),
            403 => QueryStop(Verdict::Forbidden.exit_code(), said),
            404 => QueryStop(Verdict::NotFound.exit_code(), said),
            _ => QueryStop(Verdict::Blocked.exit_code(), said),
        }),
    }
}
