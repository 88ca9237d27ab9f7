//! Where the demo is shown: a live view, or lines on stdout.

use std::io::{self, Write};

use super::{
    observer::Observer,
    screen::{Key, Screen},
};

/// Where to show.
#[derive(Debug)]
pub enum Output {
    /// The live view.
    View(Box<Screen>),
    /// Plain lines.
    Lines,
}

/// What its viewer wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// See it again.
    Redraw,
    /// See no more.
    End,
}

impl Output {
    /// The live view.
    ///
    /// # Errors
    /// Stdout is no terminal.
    pub fn view() -> io::Result<Self> {
        Ok(Self::View(Box::new(Screen::open()?)))
    }

    /// Says what the demo is; the view always does.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open(&self, opening: &str) -> io::Result<()> {
        match self {
            Self::View(_) => Ok(()),
            Self::Lines => print(opening),
        }
    }

    /// Shows what is new.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn show(&mut self, observer: &mut Observer) -> io::Result<()> {
        let lines = observer.take_lines();
        match self {
            Self::View(screen) => screen.draw(&observer.snapshot()),
            Self::Lines => lines.iter().try_for_each(|line| print(&line.to_string())),
        }
    }

    /// Waits for a wish. Cancel safe.
    pub async fn request(&mut self) -> Request {
        match self {
            Self::View(screen) => match screen.key().await {
                Key::Quit => Request::End,
                Key::Redraw => Request::Redraw,
            },
            Self::Lines => std::future::pending().await,
        }
    }
}

/// Writes a line to stdout.
///
/// # Errors
/// It cannot be written, as when it is not read any more.
pub fn print(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}
