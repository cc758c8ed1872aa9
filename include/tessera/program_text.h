// Programs as text, for bug reports, golden tests and tools. A program and its text can be converted into
// each other without loss. Whether a program is correct is not checked here; verify() does that.
//
//   tessera program 1: train microbatches 2 pipeline_rank 0
//   unit 'block.0'
//   channel shard on gather
//
//   buffer 'block.0.bf16.parameter' parameter in parameters on device of 'block.0' flat 0 spread shard
//       type bf16 1024 bytes persistent                              (one line: lines are never broken)
//   buffer 'block.0.output[4096]' output in activations on device of 'block.0' 4096 bytes lives #2-#5 #9-#12
//   scalars 'scalars' numel 13
//
//   #0 all_gather on gather of 'block.0' microbatch 0 over shard:
//       from read 'block.0.bf16.parameter' part shard bf16, to write 'block.0.bf16.gathered' part all bf16
//   #1 use forward part 0 on compute of 'block.0' microbatch 0 waits #0: parameters read …, output write …
//
// A line is one unit, channel, buffer or instruction. A field that has its default is left out. Words are
// separated by one space, in the order of the grammar. [x] is optional; {x} occurs any number of times:
//
//   program     = "tessera program 1:" kind "microbatches" N "pipeline_rank" N
//                 ["last_round_ranks" N] ["blocks" N] ["rests"]
//                 {unit} {channel} {buffer} [scalars] {instruction}
//   unit        = "unit" name ["parts" {name}]
//   channel     = "channel" axis "on" lane
//   buffer      = "buffer" name role "in" category "on" space ["of" unit] ["flat" N]
//                 ["spread" spread] ["type" type] ["index" N] N "bytes"
//                 ["persistent"] ["one_address"] ["lives" {#N-#N}]
//   scalars     = "scalars" buffer "numel" N
//   instruction = #N opcode [pass] ["open" | "close"] ["part" N] "on" lane ["of" unit] ["microbatch" N]
//                 ["over" axis | "channel" N] ["contributors" N] ["from" N] ["wire" type] ["peer" N]
//                 ["when" buffer] ["waits" {#N}]
//                 [":" operand {"," operand}]
//   operand     = role access buffer region [type]
//   region      = [ "part" spread | "parameter" N | "gaps" | "value" N | "sum" ]
//                 ["spread" spread] ["of_parameter" N] ["of_value" N]
//   spread      = "all" | axis{+axis} , behind it "/element(N)", "/block(N)" or "/parameter(N)"
//
// - A name stands between single quotes. In it ', \, control characters and bytes that are not UTF-8 are
//   escaped: \' \\ \x0a.
// - A unit or buffer is referred to by its name, which means the first one with that name. Later ones of
//   the same name, and ids that do not exist, are written @N: index N in the list, counted from 0.
// - The pass is written for every use, and elsewhere if it is not forward.
// - "over" is the first channel along that axis on the instruction's lane.
// - Spread and type are written for every buffer that belongs to a flat. The type is written for every
//   operand whose region is a part of a flat, a parameter or the gaps.
// - There is a blank line before the first buffer, before the first instruction, and between two programs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/program.h"

namespace tessera {

// The text ends in a newline. Every program has a text, also an incorrect one. UsageError for a value that is
// not an enumerator.
std::string to_text(const Program& program);
// The texts one after the other, with a blank line between them. Each begins with its own heading.
std::string to_text(std::span<const Program> programs);

// The inverse of to_text(): for every text that they accept, to_text() of the result is that text, to the
// byte. Throw UsageError naming the line, what was found there and what would be right. parse_program() takes
// exactly one program, parse_programs() any number.
Program parse_program(std::string_view text);
std::vector<Program> parse_programs(std::string_view text);

}  // namespace tessera
