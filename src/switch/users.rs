//! Whether each loop of KCM is a user of its own, without which no fence tells them apart.

use std::collections::BTreeSet;

use kube::Client;

use super::step::Direction;
use crate::{
    fence::{
        ask::{NoAnswer, read, read_if_allowed},
        policies::Fence,
    },
    preflight::{
        Level, Manager,
        facts::{ACCOUNTS, MANAGERS},
        loop_users,
    },
};

/// Why it is not so, as `preflight` would stop, by KCM's pods, or where none is seen by the ServiceAccounts that it would have
/// made. What `preflight` warns of is told. Back, nobody is fenced off.
pub(super) async fn shared_user(
    client: &Client,
    to: Direction,
    fences: &[&Fence],
    tell: &impl Fn(&str),
) -> Result<Option<String>, NoAnswer> {
    if to == Direction::KubeControllerManager {
        return Ok(None);
    }
    let pods = read_if_allowed(client, MANAGERS).await?.unwrap_or_default();
    let (mut missing, mut unread) = (BTreeSet::new(), None);
    if Manager::of_pods(&pods).pods == 0 {
        for fence in fences {
            match read(client, &format!("{ACCOUNTS}/{}", fence.account)).await {
                Ok(Some(_)) => {}
                Ok(None) => drop(missing.insert(fence.account)),
                Err(NoAnswer::Refused(_, why)) => unread = Some(why),
                Err(error) => return Err(error),
            }
        }
    }
    let missing = unread.filter(|_| missing.is_empty()).map_or(Ok(missing), Err);
    let (level, evidence, todo) = loop_users(&pods, missing);
    let told = format!("{evidence}; {todo}");
    match level {
        Level::Stop => return Ok(Some(told)),
        Level::Warn => tell(&told),
        Level::Ok => {}
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, convert::Infallible};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::fence::policies::FENCES;

    /// A server with this list of KCM's pods, and this answer for the accounts of the loops.
    fn server(pods: (u16, Value), accounts: [u16; 2]) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let account = FENCES.iter().position(|fence| path == format!("{ACCOUNTS}/{}", fence.account));
            let (code, object) = match account {
                Some(account) => (accounts[account], json!({})),
                None => pods.clone(),
            };
            let status = json!({ "kind": "Status", "status": "Failure", "message": "refused", "code": code });
            let body = if code == 200 { object } else { status };
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_fence_holds_up_loops_that_are_users_by_their_pods_or_else_by_their_accounts() {
        let pods = |flags: &[&str]| {
            let pod = |flag: &&str| json!({ "spec": { "containers": [{ "args": [flag] }] } });
            (200, json!({ "items": flags.iter().map(pod).collect::<Vec<_>>() }))
        };
        let (own, shared) = ("--use-service-account-credentials", "--leader-elect");
        let hidden = || (403, json!({}));
        // KCM's pods, the answers for the accounts, why it stops, and what is told.
        let cases = [
            (pods(&[own]), [404, 404], "", ""),
            (pods(&[own, shared]), [200, 200], "without --use-service-account-credentials", ""),
            (pods(&[]), [200, 404], "no ServiceAccount in kube-system: persistent-volume-binder;", ""),
            (pods(&[]), [404, 403], "no ServiceAccount in kube-system: attachdetach-controller;", ""),
            (hidden(), [404, 200], "no ServiceAccount in kube-system: attachdetach-controller;", ""),
            (hidden(), [200, 200], "", "but no pod of it is seen"),
            (pods(&[]), [200, 403], "", "it cannot be told: refused"),
        ];
        for (pods, accounts, stop, warning) in cases {
            let (case, told) = (format!("{pods:?} {accounts:?}"), RefCell::new(String::new()));
            let (client, fences) = (server(pods, accounts), [&FENCES[0], &FENCES[1]]);
            let tell = |line: &str| told.borrow_mut().push_str(line);
            let found = shared_user(&client, Direction::Mooring, &fences, &tell).await.unwrap();
            let (found, told) = (found.unwrap_or_default(), told.take());
            assert_eq!((found.is_empty(), told.is_empty()), (stop.is_empty(), warning.is_empty()), "{case}");
            assert!(found.contains(stop) && told.contains(warning), "{case}: {found} {told}");
        }
        let one_user = server(pods(&[shared]), [404, 404]);
        let back = shared_user(&one_user, Direction::KubeControllerManager, &[], &|_| {}).await;
        assert_eq!(back, Ok(None));
    }
}
