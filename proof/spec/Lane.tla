-------------------------------- MODULE Lane --------------------------------
(***************************************************************************)
(* The Lane of one Session, written down a second time: from the rules     *)
(* (the docstring of src/kedge/core/lane.py), not from the code.           *)
(*                                                                         *)
(* A Run is named by the seq it was accepted with. A command that is       *)
(* refused, or that changes nothing, is no step here.                      *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Prompts,        \* How often each command has an effect in one history: prompts accepted,
    Cancels,        \* cancels of all that is live,
    RunCancels,     \* cancels of one Run,
    Crashes,        \* recoveries after a crash,
    Moves,          \* changes of the queue's order,
    Clears,         \* removals of the whole queue,
    LateFolds,      \* queued Runs told to fold,
    Steps,          \* Steps that each Run begins.
    ResumesMax,     \* A Run is resumed so often, then it is ended.
    QueueRunsMax    \* The queue takes so many Runs.

Runs == 1 .. Prompts
Nobody == 0

VARIABLES
    \* What the Lane knows.
    nextSeq,        \* The seq of the next Run.
    mark,           \* Runs up to here are covered by a cancel.
    active,         \* The Run at work, or Nobody.
    queue,          \* Who waits, in order;
    steering,       \* and who of them waits to fold into the active Run.
    folded,         \* Who has folded into the active Run.
    steps,          \* Steps the active Run has begun.
    resumes,        \* Times the active Run was resumed.
    stopped,        \* TRUE: the active Run was told to stop, it alone.
    \* The last command that had an effect, and what it appended to the log.
    command,
    append,
    \* How often commands with a bound were used.
    used,
    \* What somebody knows who reads the log from its beginning, and nothing else. Watch, below, keeps these.
    accepted,       \* The seq of each Run, in the order of acceptance.
    running,        \* Runs that were started and have not ended.
    ends,           \* How often each Run has ended.
    told            \* Live Runs that were there when a cancel of all came, or that were told to stop alone. By name.

lane == <<nextSeq, mark, active, queue, steering, folded, steps, resumes, stopped>>
vars == <<lane, command, append, used, accepted, running, ends, told>>

-----------------------------------------------------------------------------
(* Events. *)

Accepted(run, folds)     == <<"RunAccepted", run, folds>>
Started(run)             == <<"RunStarted", run>>
Resumed(run)             == <<"RunResumed", run>>
StepBegun(run, step)     == <<"StepStarted", run, step>>
Folded(run, host)        == <<"RunFolded", run, host>>
Edited(run)              == <<"RunEdited", run>>
Moved(run, before)       == <<"RunMoved", run, before>>
FoldTold(run)            == <<"FoldMarked", run>>
AllTold(upTo, host)      == <<"CancelMarked", host, upTo>>
Told(run)                == <<"RunCancelMarked", run>>
Ended(run, outcome, host) == <<"RunEnded", run, outcome, host>>

Is(event, kind) == event[1] = kind
Of(event) == event[2]

-----------------------------------------------------------------------------
(* Words. *)

Elements(seq) == {seq[i] : i \in DOMAIN seq}
Without(seq, gone) == SelectSeq(seq, LAMBDA run : run \notin gone)
Rising(set) == CHOOSE seq \in [1 .. Cardinality(set) -> set] :
                   \A i, j \in DOMAIN seq : i < j => seq[i] < seq[j]
Each(seq, Event(_)) == [i \in DOMAIN seq |-> Event(seq[i])]

IsBusy == active # Nobody
Covered(run) == run <= mark \/ (run = active /\ stopped)
IsStopping == IsBusy /\ Covered(active)
Live == (IF IsBusy THEN {active} ELSE {}) \cup folded \cup Elements(queue)

Put(wish) == command' = wish
Use(kind, most) == used[kind] < most /\ used' = [used EXCEPT ![kind] = @ + 1]
Dropped(seq) == Each(seq, LAMBDA run : Ended(run, "cancelled", Nobody))

-----------------------------------------------------------------------------
(* Rule 1: submit. *)

StartAtOnce ==
    /\ active' = nextSeq
    /\ append' = <<Accepted(nextSeq, FALSE), Started(nextSeq)>>
    /\ UNCHANGED <<mark, queue, steering>>

WaitInLine(folds) ==
    /\ Len(queue) < QueueRunsMax
    /\ queue' = Append(queue, nextSeq)
    /\ steering' = IF folds THEN steering \cup {nextSeq} ELSE steering
    /\ append' = <<Accepted(nextSeq, folds)>>
    /\ UNCHANGED <<mark, active>>

\* Rule 3: is there anybody whom a cancel would reach and none has reached? Folded Runs share the fate of their host.
IsAnybodyToCover == IsBusy /\ (~IsStopping \/ queue # <<>>)
AllTogether == <<AllTold(nextSeq - 1, active)>> \o Dropped(queue)

ComeNext ==
    /\ mark' = IF IsAnybodyToCover THEN nextSeq - 1 ELSE mark
    /\ queue' = <<nextSeq>>
    /\ steering' = {}
    /\ append' = (IF IsAnybodyToCover THEN AllTogether ELSE <<>>) \o <<Accepted(nextSeq, FALSE)>>
    /\ UNCHANGED active

Submit(whenBusy) ==
    /\ Put(<<"Submit", nextSeq, whenBusy>>)
    /\ nextSeq <= Prompts
    /\ nextSeq' = nextSeq + 1
    /\ CASE ~IsBusy -> StartAtOnce
         [] IsBusy /\ whenBusy = "interrupt" -> ComeNext
         [] IsBusy /\ whenBusy # "interrupt" -> WaitInLine(whenBusy = "fold")
    /\ UNCHANGED <<folded, steps, resumes, stopped, used>>

-----------------------------------------------------------------------------
(* Rules 3 and 4: cancel. *)

Cancel ==
    /\ Put(<<"Cancel">>)
    /\ IsAnybodyToCover
    /\ Use("cancels", Cancels)
    /\ mark' = nextSeq - 1
    /\ queue' = <<>>
    /\ steering' = {}
    /\ append' = AllTogether
    /\ UNCHANGED <<nextSeq, active, folded, steps, resumes, stopped>>

Leave(run) ==
    /\ queue' = Without(queue, {run})
    /\ steering' = steering \ {run}
    /\ append' = <<Ended(run, "cancelled", Nobody)>>
    /\ UNCHANGED stopped

TellAlone(run) ==
    /\ ~IsStopping
    /\ stopped' = TRUE
    /\ append' = <<Told(run)>>
    /\ UNCHANGED <<queue, steering>>

CancelRun(run) ==
    /\ Put(<<"CancelRun", run>>)
    /\ Use("runCancels", RunCancels)
    /\ \/ run \in Elements(queue) /\ Leave(run)
       \/ run = active /\ TellAlone(run)
    /\ UNCHANGED <<nextSeq, mark, active, folded, steps, resumes>>

-----------------------------------------------------------------------------
(* The queue, by hand. *)

ClearQueue ==
    /\ Put(<<"ClearQueue">>)
    /\ queue # <<>>
    /\ Use("clears", Clears)
    /\ queue' = <<>>
    /\ steering' = {}
    /\ append' = Dropped(queue)
    /\ UNCHANGED <<nextSeq, mark, active, folded, steps, resumes, stopped>>

\* The queue with `run` taken out and put back in front of `before`, or last.
Reordered(run, before) ==
    LET rest == Without(queue, {run})
        place == IF before = Nobody THEN Len(rest) + 1 ELSE CHOOSE i \in DOMAIN rest : rest[i] = before
    IN  SubSeq(rest, 1, place - 1) \o <<run>> \o SubSeq(rest, place, Len(rest))

MoveRun(run, before) ==
    /\ Put(<<"MoveRun", run, before>>)
    /\ run \in Elements(queue)
    /\ before \in (Elements(queue) \ {run}) \cup {Nobody}
    /\ Reordered(run, before) # queue
    /\ Use("moves", Moves)
    /\ queue' = Reordered(run, before)
    /\ append' = <<Moved(run, before)>>
    /\ UNCHANGED <<nextSeq, mark, active, steering, folded, steps, resumes, stopped>>

\* Rule 8: it waits as if it had been submitted to fold, in its place and with its seq.
FoldRun(run) ==
    /\ Put(<<"FoldRun", run>>)
    /\ run \in Elements(queue) \ steering
    /\ Use("lateFolds", LateFolds)
    /\ steering' = steering \cup {run}
    /\ append' = <<FoldTold(run)>>
    /\ UNCHANGED <<nextSeq, mark, active, queue, folded, steps, resumes, stopped>>

EditRun(run) ==
    /\ Put(<<"EditRun", run>>)
    /\ run \in Elements(queue)
    /\ append' = <<Edited(run)>>
    /\ UNCHANGED <<lane, used>>

-----------------------------------------------------------------------------
(* Rule 8: a Step takes in all who wait to fold, past those who wait for a start of their own. One that only sums up
   the past takes in nobody. *)

BeginStep(folds) ==
    /\ Put(<<"BeginStep", active, folds>>)
    /\ IsBusy
    /\ ~IsStopping
    /\ steps < Steps
    /\ steps' = steps + 1
    /\ LET joining == IF folds THEN steering ELSE {}
       IN  /\ folded' = folded \cup joining
           /\ queue' = Without(queue, joining)
           /\ steering' = steering \ joining
           /\ append' = Each(SelectSeq(queue, LAMBDA run : run \in joining), LAMBDA run : Folded(run, active))
                        \o <<StepBegun(active, steps + 1)>>
    /\ UNCHANGED <<nextSeq, mark, active, resumes, stopped, used>>

-----------------------------------------------------------------------------
(* Rules 5, 6 and 7: the end of the active Run, and who comes next. *)

EndActive(reported) ==
    LET outcome == IF IsStopping THEN "cancelled" ELSE reported
        next == IF queue = <<>> THEN <<>> ELSE <<Head(queue)>>
    IN  /\ IsBusy
        /\ active' = IF queue = <<>> THEN Nobody ELSE Head(queue)
        /\ queue' = IF queue = <<>> THEN <<>> ELSE Tail(queue)
        /\ steering' = {}
        /\ folded' = {}
        /\ steps' = 0
        /\ resumes' = 0
        /\ stopped' = FALSE
        /\ append' = <<Ended(active, outcome, Nobody)>>
                     \o Each(Rising(folded), LAMBDA run : Ended(run, outcome, active))
                     \o Each(next, LAMBDA run : Started(run))
        /\ UNCHANGED <<nextSeq, mark>>

Finish(reported) ==
    /\ Put(<<"Finish", active, reported>>)
    /\ EndActive(IF reported = "stopped" THEN "interrupted" ELSE reported)
    /\ UNCHANGED used

-----------------------------------------------------------------------------
(* Rule 9: recover. A Run that has begun no Step did nothing that could be done twice. *)

Recover(onCrash) ==
    /\ Put(<<"Recover", onCrash>>)
    /\ IsBusy
    /\ Use("crashes", Crashes)
    /\ IF (onCrash = "resume" \/ steps = 0) /\ resumes < ResumesMax /\ ~IsStopping
       THEN /\ resumes' = resumes + 1
            /\ append' = <<Resumed(active)>>
            /\ UNCHANGED <<nextSeq, mark, active, queue, steering, folded, steps, stopped>>
       ELSE EndActive("interrupted")

-----------------------------------------------------------------------------
(* The reader of the log. It sees what is appended and never asks the Lane. *)

NewEnds(run) == {i \in DOMAIN append' : Is(append'[i], "RunEnded") /\ Of(append'[i]) = run}
Named(kind) == {Of(append'[i]) : i \in {i \in DOMAIN append' : Is(append'[i], kind)}}
NotEnded == {run \in Elements(accepted) : ends[run] = 0}

Watch ==
    /\ accepted' = accepted \o Each(SelectSeq(append', LAMBDA event : Is(event, "RunAccepted")), Of)
    /\ running' = (running \ Named("RunEnded")) \cup Named("RunStarted")
    /\ ends' = [run \in Runs |-> ends[run] + Cardinality(NewEnds(run))]
    \* Whoever was accepted before the cancel and has not ended: nobody less, nobody more.
    /\ LET all == IF Named("CancelMarked") = {} THEN {} ELSE NotEnded
       IN  told' = (told \cup all \cup Named("RunCancelMarked")) \ Named("RunEnded")

-----------------------------------------------------------------------------

Init ==
    /\ nextSeq = 1 /\ mark = 0
    /\ active = Nobody /\ queue = <<>> /\ steering = {} /\ folded = {}
    /\ steps = 0 /\ resumes = 0 /\ stopped = FALSE
    /\ command = <<>> /\ append = <<>>
    /\ used = [cancels |-> 0, crashes |-> 0, runCancels |-> 0, moves |-> 0, clears |-> 0, lateFolds |-> 0]
    /\ accepted = <<>> /\ running = {} /\ ends = [run \in Runs |-> 0] /\ told = {}

ByClients ==
    \/ \E whenBusy \in {"queue", "fold", "interrupt"} : Submit(whenBusy)
    \/ Cancel
    \/ \E run \in Runs : CancelRun(run) \/ EditRun(run) \/ FoldRun(run)
    \/ \E run \in Runs, before \in Runs \cup {Nobody} : MoveRun(run, before)
    \/ ClearQueue

Finishes == \E reported \in {"completed", "failed", "stopped"} : Finish(reported)

ByTheEngine ==
    \/ \E folds \in BOOLEAN : BeginStep(folds)
    \/ Finishes
    \/ \E onCrash \in {"resume", "end"} : Recover(onCrash)

Next == (ByClients \/ ByTheEngine) /\ Watch

\* The one thing that is asked of the engine: what is at work is finished some day.
Spec == Init /\ [][Next]_vars /\ WF_vars(Finishes /\ Watch)

-----------------------------------------------------------------------------
(* Promises about each state. *)

OneEndForEachRun ==
    \A run \in Runs : ends[run] = IF run \in Elements(accepted) /\ run \notin Live THEN 1 ELSE 0

AtMostOneAtWork == Cardinality(running) <= 1 /\ running = Live \cap {active}

NobodyIsInTwoPlaces ==
    /\ Cardinality(Elements(queue)) = Len(queue)
    /\ Cardinality(Live) = Cardinality({active} \ {Nobody}) + Cardinality(folded) + Len(queue)
    /\ steering \subseteq Elements(queue)

NeverIdleWithAQueue == ~IsBusy => queue = <<>> /\ folded = {}

SeqsRise == \A i, j \in DOMAIN accepted : i < j => accepted[i] < accepted[j]

\* The number and the names agree: a cancel reaches exactly those accepted before it, whenever it is worked on.
CancelCoversExactlyTheEarlier == \A run \in Live : Covered(run) <=> run \in told

NobodyCoveredWaits == told \cap Elements(queue) = {}

QueueIsBounded == Len(queue) <= QueueRunsMax

-----------------------------------------------------------------------------
(* Promises about each append. *)

EndIn(run) == append'[CHOOSE i \in NewEnds(run) : TRUE]

\* Whatever was reported, and not without a cancel.
ActiveEndsCancelledIfTold ==
    [][IsBusy /\ NewEnds(active) # {} => (EndIn(active)[3] = "cancelled" <=> active \in told)]_vars

FoldedEndWithTheirHost ==
    [][\A run \in folded :
           /\ NewEnds(run) # {} <=> NewEnds(active) # {}
           /\ NewEnds(run) # {} => EndIn(run)[3] = EndIn(active)[3] /\ EndIn(run)[4] = active]_vars

\* Nobody who waits ends otherwise than cancelled.
WaitingEndCancelled ==
    [][\A run \in Elements(queue) : NewEnds(run) # {} => EndIn(run)[3] = "cancelled"]_vars

\* A start takes the first in line, as the line stood before.
FirstInLineComesNext ==
    [][IsBusy /\ Named("RunStarted") # {} => Named("RunStarted") = {Head(queue)} /\ NewEnds(active) # {}]_vars

NumbersNeverFall == [][nextSeq' >= nextSeq /\ mark' >= mark /\ mark' < nextSeq']_vars

-----------------------------------------------------------------------------
(* What comes in the end. *)

EveryRunEnds == \A run \in Runs : run \in Elements(accepted) ~> ends[run] = 1
=============================================================================
