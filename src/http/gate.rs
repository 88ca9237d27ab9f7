//! A request with its visitor in, an answer out: what everybody may see, and what only some may.
//!
//! Open paths are answered to everybody, without reasons; to those who may read the path, with them.
//! Everything else is for those alone whom the [`Doorkeeper`] admits.

use http::{Method, StatusCode, request};

use super::{
    health::Audience,
    measures::Measures,
    options::Options,
    pages::{Pages, Sent},
    router::{Answer, Router},
    visitor::{Doorkeeper, Visitor},
};

/// An answer, and whether it was given to somebody known.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub sent: Sent,
    /// Whether the visitor has shown that it may read this.
    pub known: bool,
}

/// Answers visitors.
#[derive(Debug)]
pub struct Gate {
    pages: Pages,
    doorkeeper: Doorkeeper,
    options: Options,
    measures: Measures,
}

impl Gate {
    /// A gate before these pages.
    #[must_use]
    pub fn new(pages: Pages, doorkeeper: Doorkeeper, options: Options, measures: Measures) -> Self {
        Self { pages, doorkeeper, options, measures }
    }

    /// The pages behind it, for who is in the same process.
    #[must_use]
    pub fn router(&self) -> &Router {
        self.pages.router()
    }

    /// What is counted.
    #[must_use]
    pub fn measures(&self) -> &Measures {
        &self.measures
    }

    /// Who is let in.
    #[must_use]
    pub fn doorkeeper(&self) -> &Doorkeeper {
        &self.doorkeeper
    }

    /// Answers a request.
    pub async fn answer(&self, visitor: &Visitor, head: &request::Parts) -> Reply {
        let reply = self.reply(visitor, head).await;
        self.measures.requested(reply.sent.answer().status);
        reply
    }

    async fn reply(&self, visitor: &Visitor, head: &request::Parts) -> Reply {
        let path = head.uri.path();
        let verb = head.method.as_str().to_ascii_lowercase();
        let open = self.options.is_open(path);
        let admitted = if open && !Doorkeeper::has_credentials(visitor, &head.headers) {
            None
        } else {
            Some(self.doorkeeper.admit(visitor, &head.headers, &verb, path).await)
        };
        let audience = match admitted {
            Some(Ok(_)) => Audience::Known,
            Some(Err(denial)) if !open => {
                let (status, text) = denial.told(path);
                return Reply { sent: Sent::of(Answer::text(status, text)), known: false };
            }
            // A probe is answered whatever comes of its credentials.
            Some(Err(_)) | None => Audience::Everybody,
        };
        let known = audience == Audience::Known;
        let Some(found) = self.pages.router().find(path) else {
            return Reply { sent: Sent::of(Router::not_found()), known };
        };
        if head.method != Method::GET {
            let answer = Answer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n".to_owned());
            return Reply { sent: Sent::of(answer), known };
        }
        let sent = match self.pages.router().check(&found, head.uri.query(), audience) {
            Some(answer) => Sent::of(answer),
            None => self.pages.get(&found).await,
        };
        Reply { sent, known }
    }
}
