//! The terminal while the view is on it: taken over at the start, given back however it ends.

use std::{io, time::Duration};

use ratatui::{
    DefaultTerminal,
    crossterm::{
        cursor,
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
    },
};
use tokio::sync::mpsc;

use super::{snapshot::Snapshot, view};

/// How often the thread that reads keys looks whether it is still needed.
const PATIENCE: Duration = Duration::from_millis(100);

/// The terminal, in its other screen. Given back when dropped, and when the process panics.
#[derive(Debug)]
pub struct Screen {
    terminal: DefaultTerminal,
    keys: mpsc::Receiver<Key>,
}

/// What the user typed, as far as it matters, or that the window has another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// To end the demo.
    Quit,
    /// To draw again.
    Redraw,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// It is no terminal.
    pub fn open() -> io::Result<Self> {
        // Also sees to it that a panic gives the terminal back before it is reported, but for the
        // cursor, which is hidden while something is drawn.
        let terminal = ratatui::try_init()?;
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = execute!(io::stdout(), cursor::Show);
            report(panic);
        }));
        let (sender, keys) = mpsc::channel(16);
        std::thread::spawn(move || read_keys(&sender));
        Ok(Self { terminal, keys })
    }

    /// Draws the view.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        self.terminal.draw(|frame| view::render(frame, snapshot)).map(|_| ())
    }

    /// Waits for a key that means something. Cancel safe.
    pub async fn key(&mut self) -> Key {
        match self.keys.recv().await {
            Some(key) => key,
            // Nothing can be typed any more: signals still end the demo.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn read_keys(sender: &mpsc::Sender<Key>) {
    while !sender.is_closed() {
        match event::poll(PATIENCE) {
            Ok(false) => {}
            Ok(true) => {
                let key = event::read().ok().and_then(|event| meaning(&event));
                if key.is_some_and(|key| sender.blocking_send(key).is_err()) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// In this mode of the terminal Ctrl-C is a key like any other, not a signal.
fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Redraw),
        Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) => match code {
            KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
            KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_end_it() {
        let key = |code, modifiers| meaning(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(Key::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(meaning(&Event::Resize(80, 24)), Some(Key::Redraw));
    }
}
