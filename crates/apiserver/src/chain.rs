//! What an error says, with its causes.

use std::iter;

use crate::call::answer;

/// An error with its causes, on one line. A cause that its error already quotes is not repeated. What the API
/// server said is `<code> <reason>: <message>`, without the rest of its `Status`.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return answer::told(status.code, &status.reason, &status.message);
    }
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |cause| cause.source()) {
        let next = cause.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::error_chain;

    #[test]
    fn m12_what_the_server_said_is_shown_and_no_more() {
        let status = Status::failure("etcd is down", "InternalError").with_code(500).boxed();
        assert_eq!(error_chain(&kube::Error::Api(status)), "500 InternalError: etcd is down");
    }
}
