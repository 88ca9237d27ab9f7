use std::{convert::Infallible, fs, path::PathBuf};

use futures::FutureExt;

use super::*;
use crate::error_chain;

/// A script as a plugin, with a folder of its own.
struct Script {
    folder: tempfile::TempDir,
    plugin: Arc<Plugin>,
}

impl Script {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", text],
            "env": [{ "name": "FOLDER", "value": folder.path() }],
        });
        let mut user: AuthInfo = serde_json::from_value(json!({ "exec": exec })).unwrap();
        let plugin = Plugin::take(&mut user).unwrap();
        assert!(user.exec.is_none(), "kube would run it");
        Self { folder, plugin }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// How often it was run.
    fn runs(&self) -> usize {
        fs::read_to_string(self.file("runs")).unwrap_or_default().lines().count()
    }

    /// A client of a server that answers with the token it is shown, and refuses some.
    fn client(&self) -> Client {
        self.noting(Refusals::default())
    }

    fn noting(&self, refusals: Refusals) -> Client {
        let config = Config::new("https://127.0.0.1:1".parse().unwrap());
        Arc::clone(&self.plugin).client(config, refusals, |config| {
            let token = serde_json::to_value(&config.auth_info).unwrap()["token"].clone();
            let token = token.as_str().unwrap_or_default().to_owned();
            let service = tower::service_fn(move |_: Request<Body>| {
                let status = if token.starts_with("stale") { 401 } else { 200 };
                let body = Body::from(token.clone().into_bytes());
                async move { Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap()) }
            });
            Ok(Client::new(service, "default"))
        })
    }
}

async fn asked(client: &Client) -> Result<String, String> {
    let answer = client.send(Request::new(Body::empty())).await.map_err(|error| error_chain(&error))?;
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

/// Prints a token with its number, which holds until that time.
fn giving(name: &str, until: &str) -> String {
    format!(
        r#"echo >>"$FOLDER/runs"; n=$(wc -l <"$FOLDER/runs" | tr -d ' ')
        printf '{{"kind": "ExecCredential", "status": {{"token": "{name}-%s", "expirationTimestamp": {until}}}}}' "$n""#
    )
}

#[tokio::test]
async fn all_clients_share_one_run_of_a_plugin() {
    let script = Script::new(&giving("token", "null"));
    let clients = [(); 8].map(|()| script.client());
    let answers = futures::future::join_all(clients.iter().map(asked)).await;
    assert!(answers.iter().all(|answer| answer.as_deref() == Ok("token-1")), "{answers:?}");
    assert_eq!((asked(&clients[0]).await.as_deref(), script.runs()), (Ok("token-1"), 1));
}

#[tokio::test]
async fn s40_what_the_api_server_refuses_or_is_about_to_expire_is_renewed_and_used_until_then() {
    let soon = (Timestamp::now() + SignedDuration::from_secs(30)).to_string();
    for (name, until) in [("stale", "null".to_owned()), ("token", format!("\"{soon}\""))] {
        let script = Script::new(&giving(name, &until));
        let client = script.client();
        assert_eq!(asked(&client).await.unwrap(), format!("{name}-1"));
        // As if the pause were over.
        for run in 2..4 {
            script.plugin.state.lock().last_run = None;
            let answer = asked(&client).await.unwrap();
            assert!(answer.ends_with(&format!("-{}", run - 1)), "{answer}: nothing waits for the run");
            let mut runs = script.plugin.runs.subscribe();
            while script.plugin.state.lock().is_running {
                runs.changed().await.unwrap();
            }
            assert_eq!(asked(&client).await.unwrap(), format!("{name}-{run}"));
            assert_eq!(asked(&client).await.unwrap(), format!("{name}-{run}"), "within the pause");
            assert_eq!(script.runs(), run);
        }
    }
}

#[tokio::test]
async fn s40_a_plugin_is_run_at_once_when_what_it_gave_has_ended_and_its_failure_is_a_refusal() {
    let script = Script::new(&format!("{}; [ $n = 1 ] || exit 3", giving("token", "null")));
    let refusals = Refusals::default();
    let client = script.noting(refusals.clone());
    assert_eq!(asked(&client).await.unwrap(), "token-1");
    let ended = Credentials { user: AuthInfo::default(), expires: Some(Timestamp::now()) };
    script.plugin.state.lock().known = Some(Arc::new(ended));
    assert!(refusals.last(Duration::ZERO).now_or_never().is_none());
    for _ in 0..2 {
        let error = asked(&client).await.unwrap_err();
        assert!(error.contains("failed (exit status: 3)"), "{error}");
        assert_eq!(script.runs(), 2, "within the pause");
    }
    let said = refusals.last(Duration::ZERO).now_or_never().expect("for minutes it is an end");
    assert!(said.contains("failed (exit status: 3)"), "{said}");
}

/// A pipe that is not opened at the other end: it hangs as long as it is let.
#[tokio::test]
async fn l15_a_plugin_that_hangs_keeps_nothing_waiting_and_a_request_that_is_given_up_does_not_begin_it_anew()
{
    let script = Script::new(r#"echo >>"$FOLDER/runs"; mkfifo "$FOLDER/pipe"; cat "$FOLDER/pipe""#);
    let client = script.client();
    for _ in 0..3 {
        let limit = Duration::from_millis(50);
        timeout(limit, asked(&client)).await.expect_err("there are no credentials");
    }
    // What else there is goes on, and there is one run.
    while script.runs() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(script.plugin.state.lock().is_running);
    assert_eq!(script.runs(), 1);
    while !script.file("pipe").exists() {
        tokio::task::yield_now().await;
    }
    let pipe = script.file("pipe");
    tokio::task::spawn_blocking(move || fs::write(pipe, r#"{"status": {"token": "late"}}"#))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(asked(&client).await.unwrap(), "late");
    assert_eq!(script.runs(), 1);
}

/// The first run is let hang to its limit, in time that passes at once; the next one gives credentials.
#[tokio::test]
async fn l15_a_plugin_that_hangs_is_ended_at_its_limit_and_run_again() {
    let text = format!(
        r#"if mkdir "$FOLDER/first"; then echo $$ >"$FOLDER/pid"; exec sleep 1000; fi; {}"#,
        giving("token", "null")
    );
    let script = Script::new(&text);
    let client = script.client();
    let asking = tokio::spawn({
        let client = client.clone();
        async move { asked(&client).await }
    });
    while !fs::read_to_string(script.file("pid")).is_ok_and(|pid| pid.ends_with('\n')) {
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    let error = asking.await.unwrap().unwrap_err();
    assert!(error.contains("did not end within 30 s and was ended"), "{error}");
    let again = asked(&client).await.unwrap_err();
    assert!(again.contains("did not end within 30 s"), "within the pause it is not run again: {again}");
    tokio::time::resume();
    let pid = fs::read_to_string(script.file("pid")).unwrap();
    let process = PathBuf::from("/proc").join(pid.trim());
    let ended = async {
        while fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, ended).await.expect("it was ended");
    script.plugin.state.lock().last_run = None;
    assert_eq!(asked(&client).await.unwrap(), "token-1");
}

#[tokio::test]
async fn what_a_plugin_prints_is_in_no_error_of_it() {
    let cases = [
        (r"echo the-secret; exit 3", "failed (exit status: 3)"),
        (r"echo the-secret", "printed something other than an ExecCredential with a status"),
        (r#"echo '{"status": {"token": ["the-secret"]}}'"#, "printed something other than"),
        (
            r#"echo '{"status": {"token": "the-secret", "expirationTimestamp": "the-secret"}}'"#,
            "printed something other",
        ),
        (
            r#"echo '{"status": {"clientCertificateData": "the-secret"}}'"#,
            "gave neither a token nor a certificate",
        ),
        (
            r#"echo '{"status": {"token": "the-secret", "expirationTimestamp": "2020-01-01T00:00:00Z"}}'"#,
            "gave what has expired",
        ),
    ];
    for (text, expected) in cases {
        let script = Script::new(text);
        let error = asked(&script.client()).await.unwrap_err();
        let expected = format!("the credential plugin \"sh\" of the kubeconfig {expected}");
        assert!(error.contains(&expected) && !error.contains("the-secret"), "{text}: {error}");
        let again = script.plugin.prepare().await.unwrap_err();
        assert!(
            error.contains(&again.to_string()) && !format!("{again:?}").contains("the-secret"),
            "{again:?}"
        );
    }
    let mut user: AuthInfo =
        serde_json::from_value(json!({ "exec": { "command": "/nowhere/plugin" } })).unwrap();
    let error = Plugin::take(&mut user).unwrap().prepare().await.unwrap_err().to_string();
    assert!(error.starts_with("the credential plugin \"/nowhere/plugin\" of the kubeconfig cannot be run: "));
}
