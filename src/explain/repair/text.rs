//! A repair for a terminal: what is proven, what would be sent, or why not.
//!
//! In: the advice. Out: lines.

use std::fmt;

use super::Advice;
use crate::explain::doctor::write_wrapped;

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.requests.is_empty() {
            write_wrapped(f, "REFUSED  ", &self.repair)?;
            for why in &self.refused {
                write_wrapped(f, "  no:  ", why)?;
            }
        } else {
            write_wrapped(f, "PROPOSED  ", &self.repair)?;
        }
        for proof in &self.proof {
            write_wrapped(f, "  ok:  ", proof)?;
        }
        for request in &self.requests {
            writeln!(f, "{} {}", request.method, request.path)?;
            writeln!(f, "{}", request.body)?;
        }
        if !self.consequence.is_empty() {
            write_wrapped(f, "THEN  ", &self.consequence)?;
        }
        Ok(())
    }
}
