//! `--audit-log FILE`: who made an act, by the audit log of the API server.
//!
//! In: the log, as far as it is written (JSON lines). Out: the user of an act. The revision in a logged answer tells it (level
//! `RequestResponse`). Below that level object, verb and time have to, and where several users come into question, all are named.
//! Kubelets make no act of a storage loop, so they are left out.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::PathBuf,
};

use apiserver::{ids::ResourceVersion, kinds::ObjectRef};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// As many requests are remembered.
const REMEMBERED_REQUESTS: usize = 8_192;
/// A request is ended within this time of the watch that tells of it, by the clocks of two machines.
const NEAR: SignedDuration = SignedDuration::from_secs(10);
const WRITE_VERBS: [&str; 4] = ["create", "update", "patch", "delete"];

/// The file, from its end on. One that has become shorter was begun anew.
#[derive(Debug)]
pub(super) struct AuditLog {
    path: PathBuf,
    read: u64,
    /// A line that is not written to its end.
    begun: Vec<u8>,
}

impl AuditLog {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let read = path.metadata()?.len();
        Ok(Self { path, read, begun: Vec::new() })
    }

    /// Reads what has come.
    pub(super) fn read(&mut self, authors: &mut Authors) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            // Between the renaming of a full file and the next one there is none.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        if file.metadata()?.len() < self.read {
            (self.read, self.begun) = (0, Vec::new());
        }
        file.seek(SeekFrom::Start(self.read))?;
        self.read += u64::try_from(file.read_to_end(&mut self.begun)?).unwrap_or_default();
        let whole = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in self.begun.drain(..whole).collect::<Vec<u8>>().split(|byte| *byte == b'\n') {
            authors.take(line);
        }
        Ok(())
    }
}

/// A write that was carried out.
#[derive(Debug)]
struct Done {
    user: String,
    creates: bool,
    /// How the path of its object ends.
    path: String,
    revision: Option<String>,
    at: Timestamp,
}

/// Who has written what.
#[derive(Debug, Default)]
pub(super) struct Authors(VecDeque<Done>);

impl Authors {
    /// Takes a line of the log. What is no write that was carried out says nothing.
    pub(super) fn take(&mut self, line: &[u8]) {
        let entry: Value = serde_json::from_slice(line).unwrap_or_default();
        let text = |at: &str| entry.pointer(at).and_then(Value::as_str);
        let is_done = text("/stage") == Some("ResponseComplete")
            && text("/verb").is_some_and(|verb| WRITE_VERBS.contains(&verb))
            && entry.pointer("/responseStatus/code").and_then(Value::as_u64).is_some_and(|code| code < 300)
            && !text("/requestURI").is_some_and(|uri| uri.contains("dryRun="));
        let (Some(user), Some(resource), Some(name), Some(at)) = (
            text("/user/username").filter(|user| is_done && !user.starts_with("system:node:")),
            text("/objectRef/resource"),
            text("/objectRef/name"),
            text("/stageTimestamp").and_then(|at| at.parse().ok()),
        ) else {
            return;
        };
        let namespace = text("/objectRef/namespace").map(|name| format!("/namespaces/{name}"));
        self.0.push_back(Done {
            user: user.to_owned(),
            creates: text("/verb") == Some("create"),
            path: format!("{}/{resource}/{name}", namespace.unwrap_or_default()),
            revision: text("/responseObject/metadata/resourceVersion").map(str::to_owned),
            at,
        });
        if self.0.len() > REMEMBERED_REQUESTS {
            self.0.pop_front();
        }
    }

    /// Who made this revision of an object, of which a watch told at this time; `None` if the log does not say.
    pub(super) fn of(
        &self,
        object: &ObjectRef,
        revision: ResourceVersion,
        creates: bool,
        told: Timestamp,
    ) -> Option<String> {
        let (path, revision) = (object.path(), revision.to_string());
        let (mut sure, mut likely) = (BTreeSet::new(), BTreeSet::new());
        for done in self.0.iter().filter(|done| path.ends_with(&done.path)) {
            match &done.revision {
                Some(known) if *known == revision => drop(sure.insert(done.user.as_str())),
                // The answer to a DELETE may be a Status.
                None if done.creates == creates && told.duration_since(done.at).abs() <= NEAR => {
                    likely.insert(done.user.as_str());
                }
                _ => {}
            }
        }
        let users = if sure.is_empty() { likely } else { sure };
        (!users.is_empty()).then(|| users.into_iter().collect::<Vec<_>>().join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Of a kube-controller-manager that attached a disk twice: its user, the attacher's, and a person's.
    const RECORDED: &str = include_str!("../../tests/cases/observe/audit.jsonl");
    const CREATED: &str = "csi-22671815760a5ca341c92ad9c08c02f70d639de96e5000ec0c1beb4945e5411f";
    const RULER: &str = "system:serviceaccount:kube-system:attachdetach-controller";

    fn authors(log: &str) -> Authors {
        let mut authors = Authors::default();
        log.lines().for_each(|line| authors.take(line.as_bytes()));
        authors
    }

    #[test]
    fn the_user_of_an_act_is_told_by_its_revision_and_else_by_object_verb_and_time() {
        let (created, node) = (ObjectRef::Attachment(CREATED.into()), ObjectRef::Node("n2".into()));
        let other = ObjectRef::Attachment("csi-2".into());
        let bare = RECORDED.replace("\"responseObject\"", "\"left_out\"");
        let (recorded, bare) = (authors(RECORDED), authors(&bare));
        let [soon, late] = ["2026-11-26T18:06:45Z", "2026-11-26T18:06:59Z"].map(|at| at.parse().unwrap());
        let (dry, failed) = (bare_line("?dryRun=All", 201), bare_line("", 409));
        // The log, the object, its revision, whether it was created, when it was told, who did it.
        let cases = [
            (&recorded, &created, 249, true, late, Some(RULER)),
            (&recorded, &created, 250, false, late, Some("external-attacher")),
            (&recorded, &node, 253, false, soon, Some(RULER)),
            (&recorded, &node, 300, false, soon, None),
            (&recorded, &other, 249, true, soon, None),
            (&bare, &created, 249, true, soon, Some(RULER)),
            (&bare, &created, 249, true, late, None),
            (
                &bare,
                &node,
                253,
                false,
                soon,
                Some("admin or system:serviceaccount:kube-system:attachdetach-controller"),
            ),
            (&authors(&dry), &other, 1, true, soon, None),
            (&authors(&failed), &other, 1, true, soon, None),
            (&authors(&bare_line("", 201)), &other, 1, true, soon, Some("jane")),
        ];
        for (authors, object, revision, creates, told, expected) in cases {
            let found = authors.of(object, ResourceVersion(revision), creates, told);
            assert_eq!(found.as_deref(), expected, "{object} {revision}");
        }
    }

    fn bare_line(query: &str, code: u16) -> String {
        let uri = format!("/apis/storage.k8s.io/v1/volumeattachments{query}");
        serde_json::json!({
            "stage": "ResponseComplete", "verb": "create", "requestURI": uri, "user": { "username": "jane" },
            "objectRef": { "resource": "volumeattachments", "name": "csi-2" },
            "responseStatus": { "code": code }, "stageTimestamp": "2026-11-26T18:06:44Z",
        })
        .to_string()
    }

    #[test]
    fn a_log_is_read_from_its_end_on_line_by_line_and_anew_when_it_is_rotated() {
        let path = std::env::temp_dir().join(format!("mooring-audit-{}", std::process::id()));
        let (line, mut authors) = (bare_line("", 201), Authors::default());
        std::fs::write(&path, format!("{line}\n")).unwrap();
        let mut log = AuditLog::open(path.clone()).unwrap();
        let mut append = |text: &str, expected: usize| {
            log.read(&mut authors).unwrap();
            let mut file = File::options().create(true).append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            log.read(&mut authors).unwrap();
            assert_eq!(authors.0.len(), expected, "{text}");
        };
        append("", 0);
        append(&line[..20], 0);
        append(&format!("{}\n{line}\n", &line[20..]), 2);
        std::fs::remove_file(&path).unwrap();
        append("", 2);
        append(&format!("{line}\n"), 3);
        std::fs::remove_file(&path).unwrap();
    }
}
