//! `mooring repair`: says what would be sent, and sends it if it was told to.
//!
//! In: its arguments. Out: the proof, the exact requests, and with `--yes` what became of each. A request names the UID and
//! revision that it was decided on, so that it does nothing to what has changed since; the first that is not accepted
//! ends it.

use apiserver::wire::Encoding;
use http::{StatusCode, header};
use kube::{Client, client::Body};
use tokio::time::timeout;

use super::{
    connection::Connection,
    output::{QueryStop, UNREACHABLE, USAGE, print, printed, program},
};
use crate::{
    cli::query::{OutputForm, questions::RepairArgs},
    explain::{
        explain,
        read::{Question, exchange},
        repair::{Advice, Repair, RepairWrite, repair},
        report::Verdict,
        sheet::clean,
        subject::Subject,
    },
    terminal::complain,
};

/// How long an answer to a write may take, unless the user says otherwise: as long as the server itself takes at most.
const REPAIR_PATIENCE: std::time::Duration = std::time::Duration::from_mins(1);

/// `mooring repair`, to its end.
///
/// # Errors
/// There is no answer, or a request was not accepted.
pub async fn run(args: &RepairArgs) -> Result<Verdict, QueryStop> {
    let usage = |line| QueryStop(USAGE, line);
    // Before a server is looked for: the words may be wrong without one.
    args.asked("").map_err(usage)?;
    let mut connection = Connection::new(&args.view.connection).await?;
    let what = args.asked(&connection.namespace).map_err(usage)?;
    let reading = connection.read(&Question::Repair(what.clone())).await?;
    let advice: Advice = repair(&reading.snapshot, &what);
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
        let said = timeout(patience, send(&client, write)).await;
        let said = said.unwrap_or_else(|_| {
            let line = format!("no answer within {patience:?}: whether it was carried out is not known");
            Err(QueryStop(UNREACHABLE, line))
        });
        if let Err(QueryStop(code, why)) = said {
            let before = if sent == 0 { "nothing before it".to_owned() } else { format!("{sent} before it") };
            let line = format!("{} {}: {} ({before} was carried out)", write.method, write.path, clean(&why));
            return Err(QueryStop(code, line));
        }
        complain(&format!("accepted: {} {}", write.method, write.path));
    }
    came_of_it(&connection, &what, is_for_people).await
}

/// Sends one request. What the server refuses was not carried out.
async fn send(client: &Client, write: &RepairWrite) -> Result<(), QueryStop> {
    let unreachable = |why: String| QueryStop(UNREACHABLE, why);
    let request = http::Request::patch(format!("{}?fieldManager=mooring-repair", write.path))
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(Body::from(write.body.to_string().into_bytes()))
        .map_err(|error| unreachable(error.to_string()))?;
    let in_doubt = |why: String| {
        unreachable(format!("{why}: whether it was carried out is not known; ask again before you repeat it"))
    };
    let (parts, body) = exchange(client, request).await.map_err(in_doubt)?;
    if parts.status == StatusCode::OK {
        return Ok(());
    }
    let said = Encoding::refusal(&parts.headers, &body).message;
    let said = if said.is_empty() { format!("HTTP status {}", parts.status.as_u16()) } else { said };
    Err(match parts.status.as_u16() {
        409 => QueryStop(
            Verdict::Blocked.exit_code(),
            format!("it has changed since it was read, and stays as it is: {said}"),
        ),
        403 => QueryStop(Verdict::Forbidden.exit_code(), said),
        404 => QueryStop(Verdict::NotFound.exit_code(), said),
        500.. => in_doubt(said),
        _ => QueryStop(Verdict::Blocked.exit_code(), said),
    })
}

/// Reads again: how it stands now.
async fn came_of_it(
    connection: &Connection,
    what: &Repair,
    is_for_people: bool,
) -> Result<Verdict, QueryStop> {
    let subject = match what {
        Repair::Relink(claim, _) => Subject::Claim(claim.clone()),
        Repair::Free(volume, _) => Subject::Volume(volume.clone()),
        Repair::Unstick(name) => Subject::Attachment(name.clone()),
    };
    let reading = connection.reader.read(&Question::Object(subject.clone()), &|_| {}).await?;
    let now = explain(&reading.snapshot, &subject);
    let is_gone = matches!(what, Repair::Unstick(_)) && reading.snapshot.is_absent(&subject.object());
    let line = if is_gone { "it is gone".to_owned() } else { clean(&now.summary) };
    let namespace = subject.namespace().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    if is_for_people {
        let next = format!("{} explain {subject}{namespace}", program());
        print(&format!("SENT  {subject} now: {line}\n{next}\n"));
    } else {
        complain(&format!("sent; {subject} now: {line}"));
    }
    Ok(Verdict::Healthy)
}
