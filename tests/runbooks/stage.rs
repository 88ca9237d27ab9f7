//! The cluster of a scene: an embedded server that kubectl can ask, stand-ins, two replicas of the daemon, and what is done to
//! them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode, header};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, client::Body};
use libtest_mimic::Failed;
use test_support::{
    actors::{
        Attacher, AttacherBehaviour, KubeletBehaviour, Kubelets, Protection, Provisioner,
        ProvisionerBehaviour, Reaction,
    },
    backend::{Backend, Proxy, embedded::Embedded},
    cluster::{Cluster, DRIVER},
    control_plane::User,
    daemon::{Daemon, Launch},
};
use testbed::{Options, Server, clock::Clock, faults::Answer, kinds::volume};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt;

use crate::{
    in_process,
    samples::Samples,
    scene::{Answering, Certificate, Life, Replica, Step, Work},
    shell::Shell,
};

const NAMESPACE: &str = "mooring-system";

/// All but those that protect claims and volumes, which has a stand-in.
const CONTROLLERS: &str = "--controllers=-pvc-protection,-pv-protection,storage";

/// A replica, and what leads it to the server.
struct One {
    name: &'static str,
    proxy: Proxy,
    otherwise: Otherwise,
    daemon: Option<Daemon>,
    /// When it was started, in seconds of the scene.
    started: f64,
}

/// Parts of the lines of method and path that the server answers otherwise to a replica.
type Otherwise = Arc<Mutex<BTreeMap<String, Answering>>>;

/// All of it.
pub struct Stage {
    server: Embedded,
    cluster: Cluster,
    shell: Shell,
    replicas: Vec<One>,
    attacher: Attacher,
    kubelets: Kubelets,
    _others: (Provisioner, Protection),
    /// Puts the server back to what it was.
    backup: Option<Box<dyn FnOnce()>>,
    began: Instant,
    samples: Samples,
    /// Writes of kube-controller-manager's loops are denied.
    fenced: bool,
    /// Percent of what each replica may use.
    memory: u32,
    /// When the certificates of both expire, in seconds of the scene.
    certificates: BTreeMap<Certificate, f64>,
    told: Vec<String>,
    _serving: DropGuard,
}

impl Stage {
    /// Its parts, at work.
    pub async fn start(is_ago: bool) -> Self {
        let now = Timestamp::now();
        let start = if is_ago { now - Duration::from_hours(1) } else { now };
        let options = Options { clock: Clock::starting_at(start), ..Options::default() };
        let server = Embedded::before(in_process::start, Server::new(options));
        let cluster = Cluster::new(server.client(User::Admin));
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}")).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shell = Shell::of(&format!("http://{}", listener.local_addr().unwrap()));
        let stop = CancellationToken::new();
        let serving = stop.clone().drop_guard();
        tokio::spawn(testbed::serve(listener, dated(server.embedded().unwrap().clone()), stop));
        // The first minute is over when it is looked at.
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let epoch = (now + Duration::from_mins(1)).as_second() as f64;
        let mut stage = Self {
            cluster,
            shell,
            replicas: Vec::new(),
            attacher: Attacher::start(server.client(User::Attacher), DRIVER, AttacherBehaviour::default()),
            kubelets: Kubelets::start(server.client(User::Kubelets), KubeletBehaviour::default()),
            _others: (
                Provisioner::start(server.client(User::Provisioner), DRIVER, ProvisionerBehaviour::default()),
                Protection::start(server.client(User::ControllerManager)),
            ),
            server,
            backup: None,
            began: Instant::now(),
            samples: Samples::since(epoch),
            fenced: false,
            memory: 40,
            certificates: BTreeMap::new(),
            told: Vec::new(),
            _serving: serving,
        };
        for name in ["a", "b"] {
            let proxy = stage.server.proxy().await;
            stage.replicas.push(One { name, proxy, otherwise: Arc::default(), daemon: None, started: 0.0 });
            stage.start_replica(stage.replicas.len() - 1);
        }
        stage
    }

    fn start_replica(&mut self, place: usize) {
        let replica = &mut self.replicas[place];
        let client = answered(self.server.proxied_client(&replica.proxy), Arc::clone(&replica.otherwise));
        let launch = Launch::replica_by_default(NAMESPACE).with(CONTROLLERS);
        replica.daemon = Some(launch.start_in_process(in_process::start, client));
        replica.started = self.began.elapsed().as_secs_f64();
    }

    /// One node, one pod with its volume, and time for both replicas to have heard of it.
    pub async fn healthy(&mut self) {
        self.cluster.driver().await;
        self.cluster.class("fast", "Immediate").await;
        self.cluster.node("n1").await;
        self.cluster
            .apply(&format!(
                "{{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {{name: n1}}, \
                 spec: {{drivers: [{{name: {DRIVER}, nodeID: n1}}]}}}}"
            ))
            .await;
        self.cluster.bound_pair("v1", "c1").await;
        self.cluster.pod("p1", "n1", &["c1"]).await;
        self.cluster.running("p1").await;
        self.wait(2).await;
    }

    /// Lets minutes pass, each of which is looked at. A replica that has ended by itself is started anew, as by a kubelet.
    pub async fn wait(&mut self, minutes: usize) {
        for _ in 0..minutes {
            sleep(Duration::from_mins(1)).await;
            self.samples.begin();
            self.samples.denied(self.fenced);
            for place in 0..self.replicas.len() {
                if self.replicas[place].daemon.as_ref().is_some_and(Daemon::is_over) {
                    self.start_replica(place);
                }
                let replica = &self.replicas[place];
                let page = match &replica.daemon {
                    Some(daemon) => Some(daemon.page("/metrics").await),
                    None => None,
                };
                self.samples.take(replica.name, page.as_deref(), replica.started);
                self.samples.memory(replica.name, self.memory);
                self.samples.certificates(replica.name, &self.certificates);
            }
            self.samples.end();
        }
    }

    /// The last one that was looked at.
    pub fn minute(&self) -> usize {
        self.samples.minutes() - 1
    }

    /// All that was looked at.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// What the leader shows.
    pub async fn metrics(&self) -> String {
        let place = self.places(Replica::Leader).await[0];
        self.replicas[place].daemon.as_ref().expect("it leads").page("/metrics").await
    }

    /// Commands, and what they said.
    pub fn told(&self) -> String {
        self.told.join("\n")
    }

    /// Runs a command to its end, while time stands still.
    pub async fn run(&mut self, command: &str) -> Result<(), Failed> {
        let (shell, line) = (self.shell.clone(), command.to_owned());
        let said = tokio::task::spawn_blocking(move || shell.run(&line)).await?;
        let said =
            said.map_err(|failed| format!("{}\n{}", failed.message().unwrap_or_default(), self.told()))?;
        self.told.push(format!("$ {command}\n{said}"));
        Ok(())
    }

    /// Lets these happen, one after the other.
    pub async fn act(&mut self, steps: &[Step]) -> Result<(), Failed> {
        for step in steps {
            self.step(step).await?;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), Failed> {
        match step {
            Step::Run(command) => self.run(command).await?,
            Step::Make(manifest) => self.cluster.apply(manifest).await,
            Step::Node(name) => drop(self.cluster.node(name).await),
            Step::Pair(volume, claim) => self.cluster.bound_pair(volume, claim).await,
            Step::Pod(name, node, claim) => drop(self.cluster.pod(name, node, &[claim]).await),
            Step::Wait(minutes) => self.wait(*minutes).await,
            Step::Attacher(work) => self.attacher.change(|it| {
                it.attach = reaction(*work);
                it.detach = reaction(*work);
            }),
            Step::Detach(volume, work) => self.attacher.change(|it| {
                it.detach_of.insert(volume.clone(), reaction(*work));
            }),
            Step::Kubelet(node, life) => self.kubelets.change(|it| {
                it.silent.remove(node);
                it.holding.remove(node);
                match life {
                    Life::Works => false,
                    Life::Silent => it.silent.insert(node.clone()),
                    Life::Holds => it.holding.insert(node.clone()),
                };
            }),
            Step::Repeat(times, steps) => {
                for _ in 0..*times {
                    Box::pin(self.act(steps)).await?;
                }
            }
            Step::Requests(which, part, answering) => {
                for place in self.places(*which).await {
                    self.replicas[place].otherwise.lock().unwrap().insert(part.clone(), *answering);
                }
            }
            Step::Deaf(which, kinds) => {
                for place in self.places(*which).await {
                    for kind in kinds {
                        self.replicas[place].proxy.watches().delay(kind);
                    }
                }
            }
            Step::Hears(which, kinds) => {
                for place in self.places(*which).await {
                    for kind in kinds {
                        self.replicas[place].proxy.watches().resume(kind);
                    }
                }
            }
            Step::Stop(which) => {
                for place in self.places(*which).await {
                    if let Some(daemon) = self.replicas[place].daemon.take() {
                        daemon.kill();
                    }
                }
            }
            Step::End(which) => {
                for place in self.places(*which).await {
                    if let Some(daemon) = self.replicas[place].daemon.take() {
                        assert_eq!(daemon.terminate().await, Some(0));
                    }
                }
            }
            Step::Away(which) => {
                for place in self.places(*which).await {
                    self.replicas[place].proxy.take_away();
                }
            }
            Step::Back(which) => {
                for place in self.places(*which).await {
                    self.replicas[place].proxy.bring_back();
                }
            }
            Step::Start(which) => {
                for place in self.places(*which).await {
                    self.start_replica(place);
                }
            }
            Step::Fenced(are_denied) => self.fenced = *are_denied,
            Step::Memory(percent) => self.memory = *percent,
            Step::Certificate(certificate, days) => {
                let expires = self.began.elapsed().as_secs_f64() + f64::from(days * 86_400);
                self.certificates.insert(*certificate, expires);
            }
            Step::Stored(volume) => {
                let volume: serde_json::Value = serde_saphyr::from_str(volume)?;
                let name = volume["metadata"]["name"].as_str().expect("a name").to_owned();
                let server = self.server.embedded().unwrap();
                server.adopt(&volume::KIND, &name, volume, server.revision());
            }
            Step::Remember => {
                let server = self.server.embedded().unwrap().clone();
                let backup = server.backup();
                self.backup = Some(Box::new(move || server.restore(&backup, 0)));
            }
            Step::Restore => self.backup.take().expect("it was told to remember")(),
        }
        Ok(())
    }

    /// Which of the replicas are meant.
    async fn places(&self, which: Replica) -> Vec<usize> {
        let mut places = Vec::new();
        for (place, replica) in self.replicas.iter().enumerate() {
            let leads = match &replica.daemon {
                None => None,
                Some(daemon) => {
                    let page = daemon.page("/metrics").await;
                    Some(page.lines().any(|line| line == "leader_election_master_status{name=\"mooring\"} 1"))
                }
            };
            let is_meant = match which {
                Replica::Both => true,
                Replica::Leader => leads == Some(true),
                Replica::Standby => leads == Some(false),
                Replica::Stopped => leads.is_none(),
            };
            if is_meant {
                places.push(place);
            }
        }
        assert!(!places.is_empty(), "there is no replica that is {which:?}");
        places
    }
}

fn reaction(work: Work) -> Reaction {
    match work {
        Work::Works => Reaction::default(),
        Work::Fails => Reaction::Fail("the storage system is busy".to_owned()),
        Work::Silent => Reaction::Silent,
    }
}

/// The server, with its own time in what it answers: programs outside of the paused time go by that.
fn dated(
    server: Server,
) -> impl tower::Service<
    Request<hyper::body::Incoming>,
    Response = Response<testbed::Body>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send
+ 'static {
    tower::service_fn(move |request| {
        let server = server.clone();
        async move {
            let date = server.clock().now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            let mut answer = server.oneshot(request).await?;
            answer.headers_mut().insert(header::DATE, HeaderValue::from_str(&date).expect("a date"));
            Ok(answer)
        }
    })
}

/// A client that the server answers otherwise where a request's line of method and path has one of these in it.
fn answered(client: Client, otherwise: Otherwise) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let line = format!("{} {}", request.method(), request.uri().path());
        let otherwise = otherwise.lock().unwrap();
        let mut answering =
            otherwise.iter().filter(|(part, _)| line.contains(part.as_str())).map(|(_, it)| *it);
        let answering = answering.next_back().unwrap_or(Answering::Answered);
        let client = client.clone();
        async move {
            let (status, reason) = match answering {
                Answering::Forbidden => (StatusCode::FORBIDDEN, "Forbidden"),
                Answering::Failing => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
                Answering::Answered | Answering::Slow => {
                    if answering == Answering::Slow {
                        sleep(Duration::from_secs(3)).await;
                    }
                    return client.send(request).await;
                }
            };
            let said = Answer::refusal(status, reason).body.to_string();
            let answer = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
            Ok(answer.body(Body::from(said.into_bytes())).expect("a response"))
        }
    });
    Client::new(service, "default")
}
