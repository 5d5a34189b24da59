-------------------------------- MODULE Lane --------------------------------
(***************************************************************************)
(* The Lane of one Session, specified independently: from the rules        *)
(* (the docstring of src/kedge/core/lane.py), not from the code.           *)
(*                                                                         *)
(* A Run is identified by its seq. A command that is refused or has no     *)
(* effect is not a step of this specification.                             *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    \* The number of commands with an effect in one history:
    Prompts,        \* prompts accepted,
    Cancels,        \* cancels of all live Runs,
    RunCancels,     \* cancels of a single Run,
    Crashes,        \* recoveries after a crash,
    Moves,          \* moves within the queue,
    Clears,         \* removals of the whole queue,
    LateFolds,      \* fold commands for queued Runs.
    Steps,          \* Steps of each Run.
    ResumesMax,     \* Resumes of a Run before recovery ends it.
    QueueRunsMax,   \* The limit of the queue.
    \* Authors: 1, the owner, or 2, the owner and a named user; the limit of the queue for the named one.
    Authors,
    QueueRunsPerUserMax

Runs == 1 .. Prompts
NoRun == 0

VARIABLES
    \* The state of the Lane.
    nextSeq,        \* The seq of the next Run.
    mark,           \* A cancel covers the Runs up to this seq.
    active,         \* The active Run, or NoRun.
    queue,          \* The queued Runs, in order.
    folding,        \* Queued Runs that wait to fold into the active Run.
    folded,         \* Runs folded into the active Run.
    steps,          \* Steps of the active Run.
    resumes,        \* Resumes of the active Run.
    stopped,        \* TRUE if the active Run was cancelled by its id.
    second,         \* Live Runs of the named user. Maintained by KeepAuthors, below.
    \* The last command that had an effect, and the events that it appended to the log.
    command,
    append,
    \* The number of commands used, for those with a bound.
    used,
    \* The state of a reader of the log, who has no other source. Maintained by ReadLog, below.
    accepted,       \* The seqs of the accepted Runs, in order.
    running,        \* Runs that have started and not ended.
    ends,           \* The number of ends of each Run.
    coveredRuns     \* Live Runs covered by a cancel: those live when it was appended. By id, not by mark.

lane == <<nextSeq, mark, active, queue, folding, folded, steps, resumes, stopped>>
vars == <<lane, second, command, append, used, accepted, running, ends, coveredRuns>>

-----------------------------------------------------------------------------
(* Events. *)

Accepted(run, folds, before) == <<"RunAccepted", run, folds, before>>
Started(run)              == <<"RunStarted", run>>
Resumed(run)              == <<"RunResumed", run>>
StepStarted(run, step)    == <<"StepStarted", run, step>>
Folded(run, host)         == <<"RunFolded", run, host>>
Edited(run)               == <<"RunEdited", run>>
Moved(run, before)        == <<"RunMoved", run, before>>
FoldMarked(run)           == <<"FoldMarked", run>>
CancelMarked(upTo, run)   == <<"CancelMarked", run, upTo>>
RunCancelMarked(run)      == <<"RunCancelMarked", run>>
Ended(run, outcome, host) == <<"RunEnded", run, outcome, host>>

Is(event, kind) == event[1] = kind
RunOf(event) == event[2]

-----------------------------------------------------------------------------
(* Helpers. *)

Elements(seq) == {seq[i] : i \in DOMAIN seq}
Without(seq, gone) == SelectSeq(seq, LAMBDA run : run \notin gone)
Sorted(set) == CHOOSE seq \in [1 .. Cardinality(set) -> set] :
                   \A i, j \in DOMAIN seq : i < j => seq[i] < seq[j]
Map(seq, Event(_)) == [i \in DOMAIN seq |-> Event(seq[i])]

IsBusy == active # NoRun
Covered(run) == run <= mark \/ (run = active /\ stopped)
IsStopping == IsBusy /\ Covered(active)
Live == (IF IsBusy THEN {active} ELSE {}) \cup folded \cup Elements(queue)

SetCommand(value) == command' = value
Use(kind, most) == used[kind] < most /\ used' = [used EXCEPT ![kind] = @ + 1]
CancelledEnds(seq) == Map(seq, LAMBDA run : Ended(run, "cancelled", NoRun))

-----------------------------------------------------------------------------
(* Rule 1: submit. *)

StartNow ==
    /\ active' = nextSeq
    /\ append' = <<Accepted(nextSeq, FALSE, NoRun), Started(nextSeq)>>
    /\ UNCHANGED <<mark, queue, folding>>

\* Rule 11: the round of the queued Run at this index, and the Runs of an author.
Queued(isSecond) == {i \in DOMAIN queue : (queue[i] \in second) = isSecond}
RoundAt(index) == Cardinality({i \in Queued(queue[index] \in second) : i <= index})

\* The number of queued Runs that stay ahead of a new one.
Ahead(isSecond) ==
    LET round == Cardinality(Queued(isSecond)) + 1
    IN  CHOOSE index \in 0 .. Len(queue) :
            /\ index > 0 => RoundAt(index) <= round
            /\ \A later \in index + 1 .. Len(queue) : RoundAt(later) > round

Enqueue(folds, isSecond) ==
    /\ Len(queue) < QueueRunsMax
    /\ isSecond => Cardinality(Queued(TRUE)) < QueueRunsPerUserMax
    /\ LET ahead == Ahead(isSecond)
       IN  /\ queue' = SubSeq(queue, 1, ahead) \o <<nextSeq>> \o SubSeq(queue, ahead + 1, Len(queue))
           /\ append' = <<Accepted(nextSeq, folds, IF ahead = Len(queue) THEN NoRun ELSE queue[ahead + 1])>>
    /\ folding' = IF folds THEN folding \cup {nextSeq} ELSE folding
    /\ UNCHANGED <<mark, active>>

\* Rule 3: TRUE if a cancel would cover a Run that is not covered yet. Folded Runs are covered with their host.
CancelHasEffect == IsBusy /\ (~IsStopping \/ queue # <<>>)
CancelEvents == <<CancelMarked(nextSeq - 1, active)>> \o CancelledEnds(queue)

Interrupt ==
    /\ mark' = IF CancelHasEffect THEN nextSeq - 1 ELSE mark
    /\ queue' = <<nextSeq>>
    /\ folding' = {}
    /\ append' = (IF CancelHasEffect THEN CancelEvents ELSE <<>>) \o <<Accepted(nextSeq, FALSE, NoRun)>>
    /\ UNCHANGED active

Submit(whenBusy, isSecond) ==
    /\ SetCommand(<<"Submit", nextSeq, whenBusy, isSecond>>)
    /\ nextSeq <= Prompts
    /\ nextSeq' = nextSeq + 1
    /\ CASE ~IsBusy -> StartNow
         [] IsBusy /\ whenBusy = "interrupt" -> Interrupt
         [] IsBusy /\ whenBusy # "interrupt" -> Enqueue(whenBusy = "fold", isSecond)
    /\ UNCHANGED <<folded, steps, resumes, stopped, used>>

-----------------------------------------------------------------------------
(* Rules 3 and 4: cancel. *)

Cancel ==
    /\ SetCommand(<<"Cancel">>)
    /\ CancelHasEffect
    /\ Use("cancels", Cancels)
    /\ mark' = nextSeq - 1
    /\ queue' = <<>>
    /\ folding' = {}
    /\ append' = CancelEvents
    /\ UNCHANGED <<nextSeq, active, folded, steps, resumes, stopped>>

RemoveFromQueue(run) ==
    /\ queue' = Without(queue, {run})
    /\ folding' = folding \ {run}
    /\ append' = <<Ended(run, "cancelled", NoRun)>>
    /\ UNCHANGED stopped

StopActive(run) ==
    /\ ~IsStopping
    /\ stopped' = TRUE
    /\ append' = <<RunCancelMarked(run)>>
    /\ UNCHANGED <<queue, folding>>

CancelRun(run) ==
    /\ SetCommand(<<"CancelRun", run>>)
    /\ Use("runCancels", RunCancels)
    /\ \/ run \in Elements(queue) /\ RemoveFromQueue(run)
       \/ run = active /\ StopActive(run)
    /\ UNCHANGED <<nextSeq, mark, active, folded, steps, resumes>>

-----------------------------------------------------------------------------
(* Changes of the queue. *)

ClearQueue ==
    /\ SetCommand(<<"ClearQueue">>)
    /\ queue # <<>>
    /\ Use("clears", Clears)
    /\ queue' = <<>>
    /\ folding' = {}
    /\ append' = CancelledEnds(queue)
    /\ UNCHANGED <<nextSeq, mark, active, folded, steps, resumes, stopped>>

\* The queue with `run` moved before `before`, or to the end.
Reordered(run, before) ==
    LET rest == Without(queue, {run})
        index == IF before = NoRun THEN Len(rest) + 1 ELSE CHOOSE i \in DOMAIN rest : rest[i] = before
    IN  SubSeq(rest, 1, index - 1) \o <<run>> \o SubSeq(rest, index, Len(rest))

MoveRun(run, before) ==
    /\ SetCommand(<<"MoveRun", run, before>>)
    /\ run \in Elements(queue)
    /\ before \in (Elements(queue) \ {run}) \cup {NoRun}
    /\ Reordered(run, before) # queue
    /\ Use("moves", Moves)
    /\ queue' = Reordered(run, before)
    /\ append' = <<Moved(run, before)>>
    /\ UNCHANGED <<nextSeq, mark, active, folding, folded, steps, resumes, stopped>>

\* Rule 8: the Run waits to fold, as if submitted so. It keeps its seq and its position in the queue.
FoldRun(run) ==
    /\ SetCommand(<<"FoldRun", run>>)
    /\ run \in Elements(queue) \ folding
    /\ Use("lateFolds", LateFolds)
    /\ folding' = folding \cup {run}
    /\ append' = <<FoldMarked(run)>>
    /\ UNCHANGED <<nextSeq, mark, active, queue, folded, steps, resumes, stopped>>

EditRun(run) ==
    /\ SetCommand(<<"EditRun", run>>)
    /\ run \in Elements(queue)
    /\ append' = <<Edited(run)>>
    /\ UNCHANGED <<lane, used>>

-----------------------------------------------------------------------------
(* Rule 8: a Step folds all Runs that wait to fold; they overtake Runs that wait for their own start. A Step that only
   summarises the history folds none. *)

BeginStep(folds) ==
    /\ SetCommand(<<"BeginStep", active, folds>>)
    /\ IsBusy
    /\ ~IsStopping
    /\ steps < Steps
    /\ steps' = steps + 1
    /\ LET joining == IF folds THEN folding ELSE {}
       IN  /\ folded' = folded \cup joining
           /\ queue' = Without(queue, joining)
           /\ folding' = folding \ joining
           /\ append' = Map(SelectSeq(queue, LAMBDA run : run \in joining), LAMBDA run : Folded(run, active))
                        \o <<StepStarted(active, steps + 1)>>
    /\ UNCHANGED <<nextSeq, mark, active, resumes, stopped, used>>

-----------------------------------------------------------------------------
(* Rules 5, 6 and 7: the end of the active Run, and the start of the next. *)

EndActive(reported) ==
    LET outcome == IF IsStopping THEN "cancelled" ELSE reported
        next == IF queue = <<>> THEN <<>> ELSE <<Head(queue)>>
    IN  /\ IsBusy
        /\ active' = IF queue = <<>> THEN NoRun ELSE Head(queue)
        /\ queue' = IF queue = <<>> THEN <<>> ELSE Tail(queue)
        /\ folding' = {}
        /\ folded' = {}
        /\ steps' = 0
        /\ resumes' = 0
        /\ stopped' = FALSE
        /\ append' = <<Ended(active, outcome, NoRun)>>
                     \o Map(Sorted(folded), LAMBDA run : Ended(run, outcome, active))
                     \o Map(next, LAMBDA run : Started(run))
        /\ UNCHANGED <<nextSeq, mark>>

Finish(reported) ==
    /\ SetCommand(<<"Finish", active, reported>>)
    /\ EndActive(IF reported = "stopped" THEN "interrupted" ELSE reported)
    /\ UNCHANGED used

-----------------------------------------------------------------------------
(* Rule 9: recover. A Run without a Step has had no effect that a resume could repeat. *)

Recover(onCrash) ==
    /\ SetCommand(<<"Recover", onCrash>>)
    /\ IsBusy
    /\ Use("crashes", Crashes)
    /\ IF (onCrash = "resume" \/ steps = 0) /\ resumes < ResumesMax /\ ~IsStopping
       THEN /\ resumes' = resumes + 1
            /\ append' = <<Resumed(active)>>
            /\ UNCHANGED <<nextSeq, mark, active, queue, folding, folded, steps, stopped>>
       ELSE EndActive("interrupted")

-----------------------------------------------------------------------------
(* A Run has the author of its Submit as long as it is live. *)

KeepAuthors == second' = {run \in Live' : IF run \in Live THEN run \in second ELSE command'[4]}

-----------------------------------------------------------------------------
(* The reader of the log. It uses the appended events only, never the state of the Lane. *)

NewEnds(run) == {i \in DOMAIN append' : Is(append'[i], "RunEnded") /\ RunOf(append'[i]) = run}
RunsIn(kind) == {RunOf(append'[i]) : i \in {i \in DOMAIN append' : Is(append'[i], kind)}}
NotEnded == {run \in Elements(accepted) : ends[run] = 0}

ReadLog ==
    /\ accepted' = accepted \o Map(SelectSeq(append', LAMBDA event : Is(event, "RunAccepted")), RunOf)
    /\ running' = (running \ RunsIn("RunEnded")) \cup RunsIn("RunStarted")
    /\ ends' = [run \in Runs |-> ends[run] + Cardinality(NewEnds(run))]
    \* Exactly the Runs accepted before the cancel that have not ended.
    /\ LET all == IF RunsIn("CancelMarked") = {} THEN {} ELSE NotEnded
       IN  coveredRuns' = (coveredRuns \cup all \cup RunsIn("RunCancelMarked")) \ RunsIn("RunEnded")

-----------------------------------------------------------------------------

Init ==
    /\ nextSeq = 1 /\ mark = 0
    /\ active = NoRun /\ queue = <<>> /\ folding = {} /\ folded = {}
    /\ steps = 0 /\ resumes = 0 /\ stopped = FALSE /\ second = {}
    /\ command = <<>> /\ append = <<>>
    /\ used = [cancels |-> 0, crashes |-> 0, runCancels |-> 0, moves |-> 0, clears |-> 0, lateFolds |-> 0]
    /\ accepted = <<>> /\ running = {} /\ ends = [run \in Runs |-> 0] /\ coveredRuns = {}

ClientActions ==
    \/ \E whenBusy \in {"queue", "fold", "interrupt"}, isSecond \in {Authors = 2, FALSE} : Submit(whenBusy, isSecond)
    \/ Cancel
    \/ \E run \in Runs : CancelRun(run) \/ EditRun(run) \/ FoldRun(run)
    \/ \E run \in Runs, before \in Runs \cup {NoRun} : MoveRun(run, before)
    \/ ClearQueue

Finishes == \E reported \in {"completed", "failed", "stopped"} : Finish(reported)

EngineActions ==
    \/ \E folds \in BOOLEAN : BeginStep(folds)
    \/ Finishes
    \/ \E onCrash \in {"resume", "end"} : Recover(onCrash)

Next == (ClientActions \/ EngineActions) /\ KeepAuthors /\ ReadLog

\* Fairness: the engine eventually finishes the active Run.
Spec == Init /\ [][Next]_vars /\ WF_vars(Finishes /\ KeepAuthors /\ ReadLog)

-----------------------------------------------------------------------------
(* Invariants of each state. *)

OneEndForEachRun ==
    \A run \in Runs : ends[run] = IF run \in Elements(accepted) /\ run \notin Live THEN 1 ELSE 0

AtMostOneActive == Cardinality(running) <= 1 /\ running = Live \cap {active}

EachRunInOnePlace ==
    /\ Cardinality(Elements(queue)) = Len(queue)
    /\ Cardinality(Live) = Cardinality({active} \ {NoRun}) + Cardinality(folded) + Len(queue)
    /\ folding \subseteq Elements(queue)

NeverIdleWithAQueue == ~IsBusy => queue = <<>> /\ folded = {}

SeqsIncrease == \A i, j \in DOMAIN accepted : i < j => accepted[i] < accepted[j]

\* The mark and the ids agree: a cancel covers exactly the Runs accepted before it, no matter when it takes effect.
CancelCoversExactlyEarlierRuns == \A run \in Live : Covered(run) <=> run \in coveredRuns

NoCoveredRunQueued == coveredRuns \cap Elements(queue) = {}

QueueIsBounded == Len(queue) <= QueueRunsMax

-----------------------------------------------------------------------------
(* Properties of each append. *)

EndIn(run) == append'[CHOOSE i \in NewEnds(run) : TRUE]

\* A covered Run ends cancelled regardless of the reported outcome, and no other Run does.
ActiveEndsCancelledIffCovered ==
    [][IsBusy /\ NewEnds(active) # {} => (EndIn(active)[3] = "cancelled" <=> active \in coveredRuns)]_vars

FoldedEndWithTheirHost ==
    [][\A run \in folded :
           /\ NewEnds(run) # {} <=> NewEnds(active) # {}
           /\ NewEnds(run) # {} => EndIn(run)[3] = EndIn(active)[3] /\ EndIn(run)[4] = active]_vars

\* A queued Run can only end cancelled.
QueuedEndCancelled ==
    [][\A run \in Elements(queue) : NewEnds(run) # {} => EndIn(run)[3] = "cancelled"]_vars

\* The Run that starts is the head of the queue before the append.
QueueHeadStartsNext ==
    [][IsBusy /\ RunsIn("RunStarted") # {} => RunsIn("RunStarted") = {Head(queue)} /\ NewEnds(active) # {}]_vars

\* A new Run goes behind each Run that is the first of its author in the queue.
FirstRoundIsNotOvertaken ==
    [][\A i \in DOMAIN queue :
           IsBusy /\ nextSeq' > nextSeq /\ RoundAt(i) = 1 =>
               \A j, k \in DOMAIN queue' : queue'[j] = queue[i] /\ queue'[k] = nextSeq => j < k]_vars

NumbersNeverDecrease == [][nextSeq' >= nextSeq /\ mark' >= mark /\ mark' < nextSeq']_vars

-----------------------------------------------------------------------------
(* Liveness. *)

EveryRunEnds == \A run \in Runs : run \in Elements(accepted) ~> ends[run] = 1
=============================================================================
