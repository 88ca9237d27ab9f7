//! Reviews: the user of a token, and the paths that a user may read.
//!
//! On this server every user may do everything. Reviews are for programs that delegate authentication and
//! authorization, as the daemon does for its own pages. In: users with their tokens and paths, which a
//! test registers. Out: the answers of kube-apiserver. The server stores none of them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{
    json,
    status::{Causes, Refusal},
};

/// Path of TokenReviews.
pub const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Path of SubjectAccessReviews.
pub const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A user with a token.
#[derive(Clone, Debug, Default)]
struct Account {
    user: Value,
    paths: Vec<String>,
}

/// Who is known, by token.
#[derive(Debug, Default)]
pub struct Reviews(Mutex<HashMap<String, Account>>);

impl Reviews {
    /// Makes a user known who may read these paths.
    pub fn know(&self, token: &str, username: &str, groups: &[&str], paths: &[&str]) {
        let user = json!({ "username": username, "groups": groups });
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        self.lock().insert(token.to_owned(), Account { user, paths });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reviews a token.
    ///
    /// # Errors
    /// There is none in it.
    // kube-apiserver: pkg/registry/authentication/tokenreview/storage.go, Create.
    pub fn token(&self, mut review: Value) -> Result<Value, Refusal> {
        let token = json::text(&review, "/spec/token").to_owned();
        if token.is_empty() {
            return Err(Refusal::bad_request("token is required for TokenReview in authentication"));
        }
        let status = match self.lock().get(&token) {
            Some(account) => json!({ "authenticated": true, "user": account.user }),
            None => json!({ "user": {}, "error": "invalid bearer token" }),
        };
        finish(&mut review, status);
        Ok(review)
    }

    /// Reviews whether a user may do something.
    ///
    /// # Errors
    /// It does not say who, or not what.
    // kube-apiserver: pkg/apis/authorization/validation/validation.go, ValidateSubjectAccessReviewSpec.
    pub fn access(&self, mut review: Value) -> Result<Value, Refusal> {
        let mut causes = Causes::default();
        let is_given = |path: &str| review.pointer(path).is_some_and(|value| !value.is_null());
        let (path, resource) =
            (is_given("/spec/nonResourceAttributes"), is_given("/spec/resourceAttributes"));
        if path && resource {
            let detail = "cannot be specified in combination with resourceAttributes";
            causes.invalid("spec.nonResourceAttributes", &Value::Null, detail);
        }
        if !path && !resource {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.invalid("spec.resourceAttributes", &Value::Null, detail);
        }
        let user = json::text(&review, "/spec/user").to_owned();
        let groups = review.pointer("/spec/groups").and_then(Value::as_array).cloned().unwrap_or_default();
        if user.is_empty() && groups.is_empty() {
            causes.invalid("spec.user", &Value::from(""), "at least one of user or group must be specified");
        }
        if !causes.0.is_empty() {
            return Err(Refusal::invalid_kind("authorization.k8s.io", "", "", causes));
        }
        let asked = json::text(&review, "/spec/nonResourceAttributes/path");
        let reads = json::text(&review, "/spec/nonResourceAttributes/verb") == "get";
        let may = |account: &Account| {
            json::text(&account.user, "/username") == user && account.paths.iter().any(|path| path == asked)
        };
        let allowed =
            groups.iter().any(|group| group == "system:masters") || (reads && self.lock().values().any(may));
        finish(&mut review, json!({ "allowed": allowed }));
        Ok(review)
    }
}

fn finish(review: &mut Value, status: Value) {
    if let Some(review) = review.as_object_mut() {
        review.entry("metadata").or_insert_with(|| json!({}));
        review.insert("status".to_owned(), status);
    }
}
