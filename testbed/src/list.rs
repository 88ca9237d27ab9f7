//! Lists: a collection at the newest revision, at an earlier one, or page by page at one revision.
//!
//! In: the store, a place, the query. Out: the objects with their revision and the token of the next
//! page. The real server's table of `resourceVersion` and `resourceVersionMatch` defines the meaning of a
//! revision in the query.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    json,
    request::{Place, Query},
    selector::Selector,
    status::{Causes, Refusal},
    store::{Key, Object, Store, Unknown},
};

/// What a list or a watch asks for.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// Which objects.
    pub selector: Selector,
    /// Revision as given.
    pub revision: String,
    /// `Exact`, `NotOlderThan` or empty.
    pub revision_match: String,
    /// Page size; 0 is no limit.
    pub limit: usize,
    /// Token of the page before.
    pub continue_token: String,
    /// Watch instead of list.
    pub is_watch: bool,
    /// Watch: seconds until it ends, where that is given and not 0.
    pub timeout: Option<u64>,
    /// Watch: bookmarks.
    pub allows_bookmarks: bool,
    /// Watch: begin with what there is.
    pub sends_initial: Option<bool>,
}

impl ListOptions {
    /// Reads them.
    ///
    /// # Errors
    /// Options that cannot be read, or exclude each other.
    // kube-apiserver: apimachinery/pkg/apis/meta/internalversion/validation, ValidateListOptions.
    pub fn parse(place: &Place, query: &Query) -> Result<Self, Refusal> {
        let mut selector = query.get("fieldSelector").to_owned();
        if !place.name.is_empty() {
            selector = format!("metadata.name={},{selector}", place.name);
        }
        // kube-apiserver: a list from the watch cache (revision 0) knows no pages.
        let is_unlimited = query.get("resourceVersion") == "0";
        let limit = if is_unlimited { 0 } else { query.number("limit")?.unwrap_or(0) };
        let labels = query.get("labelSelector");
        let mut options = Self {
            selector: Selector::parse(place.kind, labels, "")?,
            revision: query.get("resourceVersion").to_owned(),
            revision_match: query.get("resourceVersionMatch").to_owned(),
            limit: usize::try_from(limit).unwrap_or(0),
            continue_token: query.get("continue").to_owned(),
            is_watch: query.flag("watch")?.unwrap_or(false),
            timeout: query
                .number("timeoutSeconds")?
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|seconds| *seconds > 0),
            allows_bookmarks: query.flag("allowWatchBookmarks")?.unwrap_or(false),
            sends_initial: query.flag("sendInitialEvents")?,
        };
        if !query.get("shardSelector").is_empty() {
            return Err(Refusal::not_implemented("shardSelector"));
        }
        let mut causes = Causes::default();
        options.check(&mut causes);
        if !causes.0.is_empty() {
            return Err(Refusal::invalid_kind("meta.k8s.io", "ListOptions", "", causes));
        }
        options.selector = Selector::parse(place.kind, labels, &selector)?;
        Ok(options)
    }

    fn check(&self, causes: &mut Causes) {
        let field = "resourceVersionMatch";
        let is_given = !self.revision_match.is_empty();
        if self.is_watch {
            if self.sends_initial.is_some() && self.revision_match != "NotOlderThan" {
                causes.forbidden(
                    field,
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                );
            }
            if is_given && self.sends_initial.is_none() {
                causes.forbidden(
                    field,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                );
            }
            if is_given && self.revision_match != "NotOlderThan" {
                causes.not_supported(field, &self.revision_match.clone().into(), &["NotOlderThan"]);
            }
        } else {
            if is_given && self.revision.is_empty() {
                causes
                    .forbidden(field, "resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if is_given && !["Exact", "NotOlderThan"].contains(&self.revision_match.as_str()) {
                causes.not_supported(
                    field,
                    &self.revision_match.clone().into(),
                    &["Exact", "NotOlderThan", ""],
                );
            }
            if self.revision_match == "Exact" && self.revision == "0" {
                causes.forbidden(
                    field,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                );
            }
            if self.sends_initial.is_some() {
                causes.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
            }
        }
        if is_given && !self.continue_token.is_empty() {
            causes.forbidden(field, "resourceVersionMatch is forbidden when continue is provided");
        }
    }

    /// The revision as a number; 0 when none is given.
    ///
    /// # Errors
    /// It is not a number.
    pub fn revision_number(&self) -> Result<u64, Refusal> {
        if self.revision.is_empty() {
            return Ok(0);
        }
        self.revision.parse().map_err(|_| {
            let mut causes = Causes::default();
            causes.invalid(
                "resourceVersion",
                &self.revision.clone().into(),
                "strconv.ParseUint: invalid syntax",
            );
            Refusal::invalid_kind("", "", "", causes)
        })
    }

    /// The lowest revision that a list may show, when it has to wait for it.
    ///
    /// # Errors
    /// The revision is not a number.
    pub fn awaited_revision(&self) -> Result<u64, Refusal> {
        if self.continue_token.is_empty() { self.revision_number() } else { Ok(0) }
    }
}

/// A list, or a page of one.
#[derive(Debug)]
pub struct Page {
    /// Objects in the order of their keys.
    pub items: Vec<Arc<Object>>,
    /// Revision they are shown at.
    pub revision: u64,
    /// Token of the next page; empty when this is the last.
    pub continue_token: String,
    /// How many come after this page, where that is known.
    pub remaining: Option<usize>,
}

impl Page {
    /// The list's `metadata`.
    pub fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if !self.continue_token.is_empty() {
            json::set(&mut metadata, "/continue", self.continue_token.clone());
        }
        if let Some(remaining) = self.remaining {
            json::set(&mut metadata, "/remainingItemCount", remaining);
        }
        metadata
    }
}

/// Lists a collection.
///
/// # Errors
/// The revision or the token cannot be read, is compacted, or lies in the future.
pub fn list(store: &Store, place: &Place, options: &ListOptions) -> Result<Page, Refusal> {
    let prefix = place.prefix();
    let asked = options.revision_number()?;
    let (revision, start) = if options.continue_token.is_empty() {
        let is_exact = options.revision_match == "Exact"
            || (options.revision_match.is_empty() && options.limit > 0 && asked > 0);
        if asked > store.revision() {
            return Err(Refusal::revision_too_large(asked, store.revision()));
        }
        (if is_exact { asked } else { store.revision() }, String::new())
    } else {
        let (revision, start) = read_token(&options.continue_token)
            .ok_or_else(|| Refusal::bad_request("continue key is not valid: the token cannot be read"))?;
        if !options.revision.is_empty() && options.revision != "0" {
            return Err(Refusal::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        (revision.unwrap_or(store.revision()), start)
    };
    let objects = match store.list(place.kind, &prefix, &start, revision) {
        Ok(objects) => objects,
        Err(Unknown::Future(current)) => return Err(Refusal::revision_too_large(revision, current)),
        Err(Unknown::Compacted(_)) if options.continue_token.is_empty() => {
            return Err(Refusal::expired("The resourceVersion for the provided list is too old."));
        }
        Err(Unknown::Compacted(_)) => {
            let message = "The provided continue parameter is too old to display a consistent list result; the token in this answer continues it at the latest revision.";
            return Err(Refusal::expired(message).with_continue(token(None, &start)));
        }
    };
    // kube-apiserver: these selectors are looked up, not filtered, so what else there is does not
    // count as a further page.
    let is_looked_up = |(_, object): &(Key, Arc<Object>)| options.selector.matches_looked_up(&object.value);
    Ok(page(objects.into_iter().filter(is_looked_up).collect(), revision, options))
}

fn page(objects: Vec<(Key, Arc<Object>)>, revision: u64, options: &ListOptions) -> Page {
    let mut page = Page { items: Vec::new(), revision, continue_token: String::new(), remaining: None };
    let total = objects.len();
    for (index, (key, object)) in objects.into_iter().enumerate() {
        if !options.selector.matches(&object.value) {
            continue;
        }
        page.items.push(object);
        if options.limit > 0 && page.items.len() == options.limit && index + 1 < total {
            page.continue_token = token(Some(revision), &key);
            page.remaining = options.selector.is_empty().then_some(total - index - 1);
            break;
        }
    }
    page
}

/// A token: the revision and the last key, opaque to clients.
fn token(revision: Option<u64>, start: &str) -> String {
    let revision = revision.map_or("latest".to_owned(), |revision| revision.to_string());
    let mut text = String::new();
    for byte in format!("{revision} {start}").bytes() {
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
    text
}

fn read_token(token: &str) -> Option<(Option<u64>, String)> {
    let mut bytes = Vec::new();
    let mut rest = token;
    while !rest.is_empty() {
        let (digits, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = tail;
    }
    let text = String::from_utf8(bytes).ok()?;
    let (revision, start) = text.split_once(' ')?;
    if revision == "latest" {
        return Some((None, start.to_owned()));
    }
    Some((Some(revision.parse().ok()?), start.to_owned()))
}
