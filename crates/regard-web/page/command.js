// Commands that give what the page shows.

/** A word as a POSIX shell reads it. */
export const quoted = (word) => (/^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** Texts that are longer are given to the command as a file. */
export const LONG_COMMAND = 400;

/** The command that gives the losses of a text: with the edits, or without. */
export function commandLine(argument, text, edits) {
  const named = argument ? [argument] : [];
  const given = text.length > LONG_COMMAND ? ['--file', 'text.txt'] : ['--text', text];
  return ['regard', 'look', ...named, ...given, ...(edits ? ['--edits', edits] : [])].map(quoted).join(' ');
}
