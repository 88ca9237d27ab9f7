//! The floor under every binder: the very writes of each bind, in their order, and nothing else.
//!
//! Who gets what is made up beforehand, from lists; nothing is watched, searched or told, and what a write
//! has to know is in the answer to the one before. So the API server is all that anybody waits for. It is as
//! fast as the machine happens to be in that minute: two subjects are comparable as far as that has not changed.

use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use kube::{Api, Client, api::ListParams};
use mooring::{
    binder::{binding::next_write, decision::Object},
    kube_api::{
        call::Caller,
        kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase, Watched},
        leadership::{Leadership, Term},
    },
    metrics::{ApiMetrics, Metrics},
};

/// Binds at once: as many as mooring sends requests.
const CONCURRENCY: usize = 64;

type Pair = (PersistentVolume, PersistentVolumeClaim);

/// Who binds without a thought.
pub struct Floor {
    client: Client,
    pairs: Mutex<Vec<Pair>>,
}

impl Floor {
    /// Nothing to do yet.
    pub fn new(client: Client) -> Self {
        Self { client, pairs: Mutex::default() }
    }

    /// Gives each claim that is not bound a free volume.
    pub async fn prepare(&self) {
        let volumes = self.list::<PersistentVolume>().await;
        let claims = self.list::<PersistentVolumeClaim>().await;
        let free = volumes.into_iter().filter(|volume| volume.status.phase == VolumePhase::Available);
        let open = claims.into_iter().filter(|claim| claim.status.phase != ClaimPhase::Bound);
        *self.pairs.lock().unwrap() = free.zip(open).collect();
    }

    /// Binds them, from now on.
    pub fn begin(&self) {
        let pairs = std::mem::take(&mut *self.pairs.lock().unwrap());
        let leadership = Leadership::new(Term::Unlimited);
        let metrics = ApiMetrics::new(&Metrics::default(), "floor").unwrap();
        let caller = Caller::new(self.client.clone(), leadership, None, Arc::new(metrics));
        tokio::spawn(async move {
            stream::iter(pairs).for_each_concurrent(CONCURRENCY, |pair| bind(&caller, pair)).await;
        });
    }

    async fn list<T: Narrow>(&self) -> Vec<T> {
        let api: Api<Watched<T>> = Api::all_with(self.client.clone(), &());
        let list = api.list(&ListParams::default()).await.expect("list");
        list.items.into_iter().map(|watched| watched.object).collect()
    }
}

async fn bind(caller: &Caller, (mut volume, mut claim): Pair) {
    while let Some(write) = next_write(&volume, &claim).expect("a volume with a size") {
        match write.target {
            Object::Volume(_) => volume = caller.write(&write.request).await.expect("write a volume"),
            Object::Claim(_) => claim = caller.write(&write.request).await.expect("write a claim"),
            Object::Pod(_) => unreachable!("a bind writes no pod"),
        }
    }
}
