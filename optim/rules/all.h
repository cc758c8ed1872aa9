// Every rule's file. Only rules.h and rules-inl.h include this one: for each kind of number that bodies are
// compiled for, hence no #pragma once.
#include "optim/rules/adamw.h"
#include "optim/rules/lion.h"
#include "optim/rules/sgd.h"
