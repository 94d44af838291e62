#include "tools/terminal.h"

#define NCURSES_NOMACROS 1
#include <curses.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

namespace percheron {
namespace {

constexpr std::array<int, 4> kEndSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array<int, 5> kCrashSignals{SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kEscapeMs = 50;  // how long a key that begins with Escape may take to come whole

// What a signal's handler may use.
std::atomic<int> asked_to_end{0};
struct Restore {
  termios settings{};
  std::array<char, 128> text{};  // leaves the screen
  size_t size = 0;
} restore;
std::array<struct sigaction, kEndSignals.size()> before_end;
std::array<struct sigaction, kCrashSignals.size()> before_crash;

void on_end_signal(int number) { asked_to_end = number; }

void on_crash(int number) {
  // ncurses itself may not be called here.
  if (write(STDOUT_FILENO, restore.text.data(), restore.size) >= 0) {
    tcsetattr(STDIN_FILENO, TCSANOW, &restore.settings);
  }
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void append(const char* capability) {
  const char* text = tigetstr(capability);
  if (text == nullptr || text == reinterpret_cast<const char*>(-1)) return;
  for (; *text != 0 && restore.size < restore.text.size(); ++text) {
    restore.text[restore.size++] = *text;
  }
}

void catch_signals() {
  asked_to_end = 0;
  struct sigaction end {
  }, crash{};
  end.sa_handler = on_end_signal;
  crash.sa_handler = on_crash;
  for (size_t i = 0; i < kEndSignals.size(); ++i) sigaction(kEndSignals[i], &end, &before_end[i]);
  for (size_t i = 0; i < kCrashSignals.size(); ++i) {
    sigaction(kCrashSignals[i], &crash, &before_crash[i]);
  }
}

void leave_signals() {
  for (size_t i = 0; i < kEndSignals.size(); ++i) {
    sigaction(kEndSignals[i], &before_end[i], nullptr);
  }
  for (size_t i = 0; i < kCrashSignals.size(); ++i) {
    sigaction(kCrashSignals[i], &before_crash[i], nullptr);
  }
}

// Pairs of colours, by ScreenStyle's number.
constexpr short kGood = 1, kWarning = 2, kBad = 3, kLabel = 4;  // NOLINT: ncurses' type

bool colours() {
  const char* refused = std::getenv("NO_COLOR");
  if (refused != nullptr && *refused != 0) return false;
  if (!has_colors() || start_color() != OK) return false;
  const short background = use_default_colors() == OK ? -1 : COLOR_BLACK;  // NOLINT
  init_pair(kGood, COLOR_GREEN, background);
  init_pair(kWarning, COLOR_YELLOW, background);
  init_pair(kBad, COLOR_RED, background);
  init_pair(kLabel, COLOR_CYAN, background);
  return true;
}

chtype attributes(ScreenStyle style, bool coloured) {
  const auto colour = [coloured](short pair, chtype else_as) {  // NOLINT
    return coloured ? static_cast<chtype>(COLOR_PAIR(pair)) : else_as;
  };
  switch (style) {
    case ScreenStyle::kPlain: return A_NORMAL;
    case ScreenStyle::kTitle: return A_BOLD;
    case ScreenStyle::kLabel: return colour(kLabel, A_NORMAL);
    case ScreenStyle::kFaint: return A_DIM;
    case ScreenStyle::kGood: return colour(kGood, A_NORMAL);
    case ScreenStyle::kWarning: return colour(kWarning, A_NORMAL);
    case ScreenStyle::kBad: return colour(kBad, A_NORMAL) | A_BOLD;
    case ScreenStyle::kSelected: return A_REVERSE;
  }
  return A_NORMAL;
}

std::optional<TopKey> meaning(int key) {
  switch (key) {
    case ERR:
    case KEY_RESIZE: return std::nullopt;
    case KEY_DOWN:
    case KEY_RIGHT:
    case 'j':
    case '\t': return TopKey::kNext;
    case KEY_UP:
    case KEY_LEFT:
    case 'k':
    case KEY_BTAB: return TopKey::kPrevious;
    case 'p': return TopKey::kPause;
    case 'r': return TopKey::kResume;
    case 's': return TopKey::kSnapshot;
    case 'y':
    case 'Y': return TopKey::kYes;
    case '?':
    case 'h': return TopKey::kHelp;
    case 'q':
    case 'Q': return TopKey::kQuit;
    case 27: return TopKey::kEscape;
    default: return TopKey::kOther;
  }
}

}  // namespace

bool has_screen() {
  const char* kind = std::getenv("TERM");
  const bool dumb = kind == nullptr || *kind == 0 || std::string_view(kind) == "dumb";
  return !dumb && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
}

bool output_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

int output_columns(int otherwise) {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return otherwise;
  return size.ws_col;
}

Result<std::unique_ptr<Terminal>> Terminal::open() {
  tcgetattr(STDIN_FILENO, &restore.settings);
  restore.size = 0;
  catch_signals();  // Before ncurses, which takes SIGINT and SIGTERM where nobody has.
  if (newterm(nullptr, stdout, stdin) == nullptr) {
    leave_signals();
    const char* kind = std::getenv("TERM");
    return failed_precondition("the terminal '" + std::string(kind ? kind : "") +
                               "' is not known here: set TERM to another kind, or use --plain");
  }
  for (const char* capability : {"sgr0", "cnorm", "rmcup", "rmkx"}) append(capability);
  std::unique_ptr<Terminal> terminal(new Terminal());
  terminal->coloured_ = colours();
  cbreak();
  noecho();
  nonl();
  curs_set(0);
  nodelay(stdscr, true);
  keypad(stdscr, true);
  set_escdelay(kEscapeMs);
  return terminal;
}

Terminal::~Terminal() {
  endwin();
  leave_signals();
}

int Terminal::width() const { return getmaxx(stdscr); }
int Terminal::height() const { return getmaxy(stdscr); }

void Terminal::show(const std::vector<ScreenLine>& lines) {
  erase();
  for (size_t i = 0; i < lines.size(); ++i) {
    move(static_cast<int>(i), 0);
    for (const ScreenLine::Part& part : lines[i].parts()) {
      attrset(static_cast<int>(attributes(part.style, coloured_)));
      addnstr(part.text.data(), static_cast<int>(part.text.size()));
    }
  }
  attrset(A_NORMAL);
  refresh();
}

std::optional<TopKey> Terminal::read_key(std::chrono::milliseconds wait) {
  if (const std::optional<TopKey> key = meaning(getch())) return key;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, static_cast<int>(wait.count())) <= 0) return std::nullopt;
  if ((input.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) gone_ = true;
  return meaning(getch());
}

int Terminal::end_signal() const {
  return asked_to_end != 0 ? asked_to_end.load() : gone_ ? SIGHUP : 0;
}

}  // namespace percheron
