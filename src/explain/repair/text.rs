//! A repair for a terminal: what is proven, what would be sent, or why not.
//!
//! In: the advice. Out: lines.

use std::fmt;

use super::Advice;
use crate::explain::wrap::on_terminal;

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.requests.is_empty() {
            f.write_str(&on_terminal("REFUSED  ", &self.repair))?;
            for why in &self.refused {
                f.write_str(&on_terminal("  no:  ", why))?;
            }
        } else {
            f.write_str(&on_terminal("PROPOSED  ", &self.repair))?;
        }
        for proof in &self.proof {
            f.write_str(&on_terminal("  ok:  ", proof))?;
        }
        for request in &self.requests {
            writeln!(f, "{} {}", request.method, request.path)?;
            writeln!(f, "{}", request.body)?;
        }
        if !self.consequence.is_empty() {
            f.write_str(&on_terminal("THEN  ", &self.consequence))?;
        }
        Ok(())
    }
}
