//! Consequences for a terminal.
//!
//! In: the consequences. Out: lines.

use std::fmt;

use super::{Consequences, When};
use crate::explain::{report::Risk, text::unseen, wrap::on_terminal};

/// So many effects of a time are printed; JSON has all of them.
const ROWS: usize = 20;

impl fmt::Display for Consequences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&on_terminal("WHAT IF  ", &self.change))?;
        f.write_str(&on_terminal("    ", &self.summary))?;
        for (when, title) in [(When::Now, "NOW"), (When::Then, "THEN"), (When::Later, "LATER")] {
            let of_then: Vec<_> = self.effects.iter().filter(|effect| effect.when == when).collect();
            if of_then.is_empty() {
                continue;
            }
            writeln!(f, "{title}")?;
            for effect in of_then.iter().take(ROWS) {
                let mark = match effect.risk {
                    Risk::Safe => "  ",
                    Risk::Care => "! ",
                    Risk::Danger => "!!",
                };
                let at = effect.at.map(|at| at.strftime(" at %H:%M:%SZ").to_string()).unwrap_or_default();
                let text = format!("{} {}{at}: {}", effect.action, effect.object, effect.text);
                f.write_str(&on_terminal(&format!("  {mark} "), &text))?;
            }
            if let Some(more) = of_then.len().checked_sub(ROWS).filter(|more| *more > 0) {
                writeln!(f, "     … and {more} more: -o json")?;
            }
        }
        for assumed in &self.assumed {
            f.write_str(&on_terminal("assumed: ", assumed))?;
        }
        for line in unseen(&self.unseen, false) {
            f.write_str(&on_terminal("not checked: ", &line))?;
        }
        Ok(())
    }
}
